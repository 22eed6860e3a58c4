from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Saccade

TEXTS = ("--no-model", "--data.vocabulary", "80")


def options(data: Path, *uses: str) -> list[object]:
    """Options that name the files of number words for these uses."""
    found: list[object] = []
    for use, prefix in (("train", ""), ("valid", "valid-"), ("test", "test-")):
        if use in uses:
            found += [f"--{prefix}source", data / f"{use}.en", f"--{prefix}target", data / f"{use}.de"]
    return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pair(folder: Path, name: str, source: bytes, target: bytes) -> list[object]:
    (folder / f"{name}.a").write_bytes(source)
    (folder / f"{name}.b").write_bytes(target)
    return ["--source", f"{name}.a", "--target", f"{name}.b"]


def test_valid_data_and_forecast(data: Path, files: Path, saccade: Saccade) -> None:
    result = saccade("check", *options(data, "train", "valid", "test"), *TINY, "--output", "x")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
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
        "epoch, ",
        "model: transformer, ",
        "memory: ",
        "time: ",
        "disk: ",
    ):
        assert part in result.out
    assert lines[-1] == "0 errors, 0 warnings"
    assert not (files / "x").exists()  # nothing is trained


def test_json(data: Path, files: Path, saccade: Saccade) -> None:
    result = saccade("check", *options(data, "train", "valid"), *TINY, "--training.max-epochs", 2, "--json")
    values = json.loads(result.out)
    assert result.code == 0
    assert values["has_errors"] is False
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


def test_no_model_skips_the_forecast(
    data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("the forecast was computed")

    monkeypatch.setattr("saccade.training.preflight.inspector.forecast", fail)
    result = saccade("check", *options(data, "train"), *TEXTS)
    assert result.code == 0
    assert "vocabulary: 80" in result.out
    assert "memory" not in result.out


def test_all_errors_are_listed_and_nothing_is_tokenized(files: Path, saccade: Saccade) -> None:
    source = b"one\n" + b"f\xfcnf\n" * 20 + b"x\n"
    arguments = write_pair(files, "train", source, b"eins\n" * 30)
    (files / "valid.tsv").write_bytes(b"a\tb\nno tab\n")
    result = saccade("check", *arguments, "--valid-source", "valid.tsv")
    assert result.code == 1
    assert result.err == ""
    assert re.search(r"error: train\.a, line 2: byte 2 .*0xfc.*\n +train\.a, line 3: byte 2", result.out)
    assert "15 more" in result.out
    assert "iconv -f latin1" in result.out
    assert re.search(r"error: train\.a, train\.b: .*22 .*30", result.out)
    assert "error: valid.tsv, line 2: " in result.out
    assert "information: training data" not in result.out
    assert result.out.splitlines()[-1] == "3 errors, 0 warnings"
    assert "vocabulary" not in result.out


def test_pairs_are_counted_without_invalid_lines(files: Path, saccade: Saccade) -> None:
    result = saccade("check", *write_pair(files, "train", b"\xff\n\nx\n", b"1\n2\n3\n"))
    assert result.code == 1
    assert "train.a, pair 1\n" in result.out
    assert "information: training data" in result.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "train.b: "),
        ("one\ntwo\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        (b"one\rtwo\rthree", "carriage return"),
        (gzip.compress(b"one\n", mtime=0), "gzip"),
        (b"x" * 10_000_001, "line 1: "),
        (None, "train.b: "),
    ],
)
def test_invalid_files(content: bytes | None, message: str, files: Path, saccade: Saccade) -> None:
    arguments = write_pair(files, "train", b"a\nb\n", content or b"")
    if content is None:
        (files / "train.b").unlink()
    result = saccade("check", *arguments)
    assert result.code == 1
    assert message in result.out
    assert "internal" not in result.out + result.err


def test_truncated_archive(files: Path, saccade: Saccade) -> None:
    pairs = "".join(f"{number}\tword {number}\n" for number in range(5000)).encode()
    (files / "a.tsv.gz").write_bytes(gzip.compress(pairs)[:-500])
    result = saccade("check", "--source", "a.tsv.gz")
    assert result.code == 1
    assert "error: a.tsv.gz: " in result.out


def test_pipe_is_an_error(files: Path, saccade: Saccade) -> None:
    os.mkfifo(files / "pipe")
    result = saccade("check", "--source", "pipe", "--target", "pipe")
    assert result.code == 1
    assert "pipe: " in result.out


def test_warnings(files: Path, saccade: Saccade) -> None:
    lines = [f"line {number}" for number in range(100)]
    sources = "".join(f"{line}\n" for line in lines)
    targets = "".join(f"{line if index < 30 else line[::-1]}\n" for index, line in enumerate(lines))
    arguments = write_pair(files, "train", sources.encode(), targets.encode())
    (files / "test.tsv").write_text("line 1\tline 1\nother\tanders\n")
    (files / "valid.tsv").write_text("漢字\tline\n")
    result = saccade(
        *("check", *arguments, "--valid-source", "valid.tsv", "--test-source", "test.tsv", "--no-model"),
        *("--data.tokenizer", "char", "--data.max-length", 6),
    )
    assert result.code == 0
    assert "warning: training data: 30 pairs (30 %)" in result.out
    assert "train.a, pair 1: 'line 0'" in result.out
    assert re.search(r"warning: 1 pair \(50 %\) of the test data .*\n +train\.a, pair 2:", result.out)
    assert re.search("warning: 100 % .*validation source", result.out)
    assert "warning: 90 % of the training pairs" in result.out
    assert result.out.splitlines()[-1].endswith(", 6 warnings")


def test_identical_targets_are_an_error(files: Path, saccade: Saccade) -> None:
    arguments = write_pair(files, "train", b"".join(b"line %d\n" % number for number in range(20)), b"same\n" * 20)
    result = saccade("check", *arguments)
    assert result.code == 1
    assert "error: training data: 20 pairs (100 %)" in result.out


def test_no_pairs_left_after_filtering_is_an_error(data: Path, files: Path, saccade: Saccade) -> None:
    result = saccade("check", *options(data, "train"), *TEXTS, "--data.max-length", 1, "--data.tokenizer", "char")
    assert result.code == 1
    assert "filters" in result.out


def test_invalid_settings_are_reported_with_the_data(data: Path, files: Path, saccade: Saccade) -> None:
    (files / "full").mkdir()
    (files / "full" / "something").touch()
    result = saccade("check", *options(data, "train"), *TEXTS, "--output", "full", "--training.patience", 3)
    assert result.code == 1
    assert "error: full: " in result.out
    assert re.search("error: .*validation data", result.out)
    assert "vocabulary: 80" in result.out
    assert (
        str(data / "train.en/x")
        in saccade("check", *options(data, "train"), *TEXTS, "--output", data / "train.en/x").out
    )


def test_too_little_disk_space_is_an_error(
    data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 10

    monkeypatch.setattr("saccade.training.preflight.disk_space.shutil.disk_usage", lambda _: Full)
    result = saccade("check", *options(data, "train"), *TINY)
    assert result.code == 1
    assert re.search("error: .*checkpoints", result.out)


def test_too_few_positions_are_an_error(data: Path, files: Path, saccade: Saccade) -> None:
    result = saccade(
        "check", *options(data, "train"), *TINY, "--model.positions", "learned", "--model.max-positions", 3
    )
    assert result.code == 1
    assert re.search("error: .*longest example", result.out)


def test_too_little_memory_is_a_warning(
    data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saccade.training.preflight.memory_and_time_forecast.available_memory", lambda _: 1000)
    result = saccade("check", *options(data, "train"), *TINY)
    assert result.code == 0
    assert re.search("warning: .*longest batch", result.out)


def test_several_corpora_and_a_recipe(
    data: Path, files: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(data))
    recipe = files / "numbers.yaml"
    recipe.write_text("model: {preset: transformer-tiny}\ndata: {source: train.en, target: train.de}\n")
    assert saccade("check", recipe, *TEXTS).code == 0
    twice = [*options(data, "train"), *options(data, "train")]
    result = saccade("check", *twice, *TEXTS)
    assert result.code == 0
    assert "warning: training data: 300 pairs (50 %)" in result.out
    assert result.out.count(": 300 pairs\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check", "--source"),
        ("check --source a --test-target b", "--test-source"),
        ("check --source a --data.vocab 3", "'data.vocab'"),
        ("check --sorce a", "'--source'"),
    ],
)
def test_usage_errors(arguments: str, message: str, saccade: Saccade) -> None:
    result = saccade(*arguments.split())
    assert (result.code, result.out) == (2, "")
    assert message in result.err
