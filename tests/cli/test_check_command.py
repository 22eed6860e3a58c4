from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Saccade

TEXTS = ("--no-model", "--data.vocabulary", "80")


def options(data: Path, *uses: str) -> list[object]:
    """The files of number words for these uses."""
    found: list[object] = []
    for use, prefix in (("train", ""), ("valid", "valid-"), ("test", "test-")):
        if use in uses:
            found += [f"--{prefix}source", data / f"{use}.en", f"--{prefix}target", data / f"{use}.de"]
    return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pair(folder: Path, name: str, source: bytes, target: bytes) -> list[object]:
    (folder / f"{name}.a").write_bytes(source)
    (folder / f"{name}.b").write_bytes(target)
    return ["--source", f"{name}.a", "--target", f"{name}.b"]


def test_good_data_and_its_forecast(data: Path, files: Path, saccade: Saccade) -> None:
    answer = saccade("check", *options(data, "train", "valid", "test"), *TINY, "--output", "x")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == f"training: {data / 'train.en'}, {data / 'train.de'}: 300 pairs"
    assert lines[1].endswith(": 10 pairs")
    assert lines[2].endswith(": 8 pairs")
    for part in (
        "lengths in tokens",
        "training source",
        "validation target",
        "vocabulary: 80 bpe tokens for both sides",
        "unknown tokens, validation: 0 % of the source, 0 % of the target",
        "filters: dropped none of 300 pairs",
        "an epoch, ",
        "model: transformer, ",
        "memory: ",
        "time: ",
        "disk: ",
    ):
        assert part in answer.out
    assert lines[-1] == "0 errors, 0 warnings"
    assert not (files / "x").exists()  # nothing is trained, and the place stays free


def test_json(data: Path, files: Path, saccade: Saccade) -> None:
    answer = saccade("check", *options(data, "train", "valid"), *TINY, "--training.max-epochs", 2, "--json")
    values = json.loads(answer.out)
    assert answer.code == 0
    assert values["faulty"] is False
    assert [given["use"] for given in values["inputs"]] == ["training", "validation"]
    assert values["reports"]["training"]["pairs"] == 300
    training, validation = values["tokens"]
    assert training["pairs"] == 300
    assert training["source"]["quantiles"] == sorted(training["source"]["quantiles"])
    assert training["source"]["quantiles"][-1] <= training["source"]["longest"]
    assert validation["target"]["unknown_share"] == 0
    forecast = values["forecast"]
    assert forecast["fits"] is True
    assert forecast["total_seconds"] == pytest.approx(2 * forecast["epoch_seconds"])
    assert values["disk_bytes"] > 0
    saccade("check", *options(data, "train"), *TEXTS, "--json", files / "found.json")
    assert json.loads((files / "found.json").read_text())["forecast"] is None


def test_without_a_model(data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("no model was wanted")

    monkeypatch.setattr("saccade.training.preflight.inspector.forecast", fail)
    answer = saccade("check", *options(data, "train"), *TEXTS)
    assert answer.code == 0
    assert "vocabulary: 80" in answer.out
    assert "memory" not in answer.out


def test_all_faults_are_listed_and_nothing_is_tokenised(files: Path, saccade: Saccade) -> None:
    source = b"one\n" + b"f\xfcnf\n" * 20 + b"x\n"
    arguments = write_pair(files, "train", source, b"eins\n" * 30)
    (files / "valid.tsv").write_bytes(b"a\tb\nno tab\n")
    answer = saccade("check", *arguments, "--valid-source", "valid.tsv")
    assert answer.code == 1
    assert answer.err == ""
    assert "error: train.a, line 2: byte 2 of the line is not UTF-8 (0xfc)\n      train.a, line 3: byte 2" in answer.out
    assert "and 15 more of this kind in this file" in answer.out
    assert "iconv -f latin1" in answer.out
    assert "error: train.a, train.b: train.a has 22 lines, train.b has 30" in answer.out
    assert "error: valid.tsv, line 2: has 1 column, but column 2 is needed" in answer.out
    assert "information: training data: pairs are counted without the faulty lines" not in answer.out
    assert answer.out.splitlines()[-1] == "3 errors, 0 warnings"
    assert "vocabulary" not in answer.out


def test_pairs_are_counted_without_faulty_lines(files: Path, saccade: Saccade) -> None:
    answer = saccade("check", *write_pair(files, "train", b"\xff\n\nx\n", b"1\n2\n3\n"))
    assert answer.code == 1
    assert "train.a, pair 1\n" in answer.out
    assert "information: training data: pairs are counted without the faulty lines" in answer.out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        ("one\ntwo\n".encode("utf-16"), "is UTF-16\n    convert it with: iconv -f utf-16 -t utf-8"),
        (b"one\rtwo\rthree", "line ends of an old Mac"),
        (gzip.compress(b"one\n", mtime=0), "is compressed by gzip"),
        (b"x" * 10_000_001, "line 1: has more than 10,000,000 bytes"),
        (None, "no such file"),
    ],
)
def test_files_of_every_careless_kind(content: bytes | None, said: str, files: Path, saccade: Saccade) -> None:
    arguments = write_pair(files, "train", b"a\nb\n", content or b"")
    if content is None:
        (files / "train.b").unlink()
    answer = saccade("check", *arguments)
    assert answer.code == 1
    assert said in answer.out
    assert "internal" not in answer.out + answer.err


def test_a_truncated_archive(files: Path, saccade: Saccade) -> None:
    pairs = "".join(f"{number}\tword {number}\n" for number in range(5000)).encode()
    (files / "a.tsv.gz").write_bytes(gzip.compress(pairs)[:-500])
    answer = saccade("check", "--source", "a.tsv.gz")
    assert answer.code == 1
    assert "error: a.tsv.gz: is damaged or cut off after line" in answer.out


def test_a_pipe_is_not_waited_for(files: Path, saccade: Saccade) -> None:
    os.mkfifo(files / "pipe")
    answer = saccade("check", "--source", "pipe", "--target", "pipe")
    assert answer.code == 1
    assert "pipe: is no regular file" in answer.out


def test_what_deserves_a_warning(files: Path, saccade: Saccade) -> None:
    lines = [f"line {number}" for number in range(100)]
    sources = "".join(f"{line}\n" for line in lines)
    targets = "".join(f"{line if place < 30 else line[::-1]}\n" for place, line in enumerate(lines))
    arguments = write_pair(files, "train", sources.encode(), targets.encode())
    (files / "test.tsv").write_text("line 1\tline 1\nother\tanders\n")
    (files / "valid.tsv").write_text("漢字\tline\n")
    answer = saccade(
        *("check", *arguments, "--valid-source", "valid.tsv", "--test-source", "test.tsv", "--no-model"),
        *("--data.tokenizer", "char", "--data.max-length", 6),
    )
    assert answer.code == 0
    assert "warning: training data: 30 pairs (30 %) have the same text on both sides" in answer.out
    assert "train.a, pair 1: 'line 0'" in answer.out
    assert "warning: 1 pair (50 %) of the test data is in the training data\n      train.a, pair 2:" in answer.out
    assert "warning: 100 % of the tokens of the validation source are unknown" in answer.out
    assert "warning: 90 % of the training pairs are dropped" in answer.out
    assert answer.out.splitlines()[-1].endswith(", 6 warnings")


def test_data_that_teaches_nothing_is_an_error(files: Path, saccade: Saccade) -> None:
    arguments = write_pair(files, "train", b"".join(b"line %d\n" % number for number in range(20)), b"same\n" * 20)
    answer = saccade("check", *arguments)
    assert answer.code == 1
    assert "error: training data: 20 pairs (100 %) have one and the same target" in answer.out


def test_no_pair_is_left_after_the_filters(data: Path, files: Path, saccade: Saccade) -> None:
    answer = saccade("check", *options(data, "train"), *TEXTS, "--data.max-length", 1, "--data.tokenizer", "char")
    assert answer.code == 1
    assert "no pair is left after the filters" in answer.out


def test_settings_that_would_fail_are_found_beside_the_rest(data: Path, files: Path, saccade: Saccade) -> None:
    (files / "full").mkdir()
    (files / "full" / "something").touch()
    answer = saccade("check", *options(data, "train"), *TEXTS, "--output", "full", "--training.patience", 3)
    assert answer.code == 1
    assert "error: full: already exists and is not empty" in answer.out
    assert "error: early stopping and a criterion need validation data" in answer.out
    assert "vocabulary: 80" in answer.out
    assert "cannot be made in" in saccade("check", *options(data, "train"), *TEXTS, "--output", data / "train.en/x").out


def test_a_disk_that_is_too_small(data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 10

    monkeypatch.setattr("saccade.training.compute_settings.shutil.disk_usage", lambda _: Full)
    answer = saccade("check", *options(data, "train"), *TINY)
    assert answer.code == 1
    assert "checkpoints and models will need" in answer.out


def test_a_model_that_cannot_hold_its_data(data: Path, files: Path, saccade: Saccade) -> None:
    answer = saccade(
        "check", *options(data, "train"), *TINY, "--model.positions", "learned", "--model.max-positions", 3
    )
    assert answer.code == 1
    assert "error: the longest example has" in answer.out


def test_too_little_memory_is_a_warning(
    data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saccade.training.preflight.forecast.available_memory", lambda _: 1000)
    answer = saccade("check", *options(data, "train"), *TINY)
    assert answer.code == 0
    assert "warning: the longest batch is expected to need" in answer.out


def test_several_corpora_and_a_recipe(
    data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(data))
    recipe = files / "numbers.yaml"
    recipe.write_text("model: {preset: transformer-tiny}\ndata: {source: train.en, target: train.de}\n")
    assert saccade("check", recipe, *TEXTS).code == 0
    twice = [*options(data, "train"), *options(data, "train")]
    answer = saccade("check", *twice, *TEXTS)
    assert answer.code == 0
    assert "warning: training data: 300 pairs (50 %) repeat an earlier pair" in answer.out
    assert answer.out.count(": 300 pairs\n") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("check", "give --source FILE and --target FILE"),
        ("check --source a --test-target b", "--test-target is given without --test-source"),
        ("check --source a --data.vocab 3", "unknown setting 'data.vocab'"),
        ("check --sorce a", "did you mean '--source'?"),
        ("check --from nowhere --source a", "there is no such run or model folder"),
    ],
)
def test_faulty_usage(arguments: str, said: str, saccade: Saccade) -> None:
    answer = saccade(*arguments.split())
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
