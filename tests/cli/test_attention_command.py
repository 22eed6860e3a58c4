from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Saccade

SENTENCE = "three hundred and twenty-one"
MAGIC = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def test_attention_map_without_color_in_a_pipe(run: Path, saccade: Saccade) -> None:
    result = saccade("attention", run, SENTENCE, "--target", "dreihundert")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{SENTENCE}\n→ dreihundert\n")
    assert "█" in result.out
    assert "\x1b[" not in result.out


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_color_on_a_terminal(
    no_color: str, colored: bool, run: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("saccade.cli.output.alignment.sys.stdout.isatty", lambda: True)
    assert ("\x1b[" in saccade("attention", run, SENTENCE, "--target", "drei").out) is colored


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_the_suffix_selects_the_format_of_a_plot(suffix: str, run: Path, tmp_path: Path, saccade: Saccade) -> None:
    path = tmp_path / f"plot.{suffix}"
    result = saccade("attention", run, SENTENCE, "--plot", path, "--target", "dreihundert")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[-1].endswith(str(path))
    assert path.read_bytes().startswith(MAGIC[suffix.lower()])
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["plot.gif", "plot", "plot.svg.gz", "svg"])
def test_an_unknown_suffix_is_a_usage_error_that_names_the_valid_ones(
    name: str, run: Path, tmp_path: Path, saccade: Saccade
) -> None:
    result = saccade("attention", run, SENTENCE, "--plot", tmp_path / name)
    assert (result.code, result.out) == (2, "")
    assert all(suffix in result.err for suffix in (".png", ".svg", ".pdf"))
    assert not list(tmp_path.iterdir())


def test_plot_of_each_head(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    one, heads = tmp_path / "one.svg", tmp_path / "heads.svg"
    for path, more in ((one, []), (heads, ["--heads"])):
        assert saccade("attention", run, SENTENCE, "--plot", path, *more, "--target", "dreihundert").code == 0
    assert "layer 0, head 0" not in one.read_text(encoding="utf-8")
    assert "layer 0, head 1" in heads.read_text(encoding="utf-8")


def test_weights_of_words(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    options = ["--target", "dreihundert einundzwanzig"]
    pieces = json.loads(saccade("attention", run, SENTENCE, *options, "--json").out)
    words = json.loads(saccade("attention", run, SENTENCE, *options, "--words", "--json").out)
    assert words["source_pieces"] == [*SENTENCE.split(), "</s>"]
    assert words["target_pieces"] == ["dreihundert", "einundzwanzig", "</s>"]
    assert len(pieces["target_pieces"]) > 3
    assert [sum(row) for row in words["alignment"]] == [pytest.approx(1, abs=1e-4)] * 3
    assert words["alignment"][-1][-1] == pytest.approx(pieces["alignment"][-1][-1], abs=1e-5)  # the end symbols
    drawn = saccade("attention", run, SENTENCE, *options, "--words").out
    assert [line.split()[0] for line in drawn.splitlines()[-4:-1]] == words["target_pieces"]
    heads = tmp_path / "heads.svg"
    assert saccade("attention", run, SENTENCE, *options, "--words", "--heads", "--plot", heads).code == 0
    assert "dreihundert" in heads.read_text(encoding="utf-8")
    assert "▁" not in heads.read_text(encoding="utf-8")


def test_an_unknown_word_is_shown(run: Path, saccade: Saccade) -> None:
    result = json.loads(saccade("attention", run, "three 猫 hundred", "--target", "drei 犬", "--json").out)
    assert any("猫" in piece for piece in result["source_pieces"])
    assert any("犬" in piece for piece in result["target_pieces"])
    assert "<unk>" not in "".join(result["source_pieces"] + result["target_pieces"]) + result["target"]


def test_json(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    values = json.loads(saccade("attention", run, SENTENCE, "--json", "--beam", 1).out)
    assert values["source"] == SENTENCE
    assert values["target"] == saccade("translate", run, "--beam", 1, stdin=SENTENCE).out.strip()
    assert len(values["alignment"]) == len(values["target_pieces"])
    saccade("attention", run, SENTENCE, "--json", tmp_path / "a.json", "--decoding.beam", 1)
    assert json.loads((tmp_path / "a.json").read_text()) == values


def test_empty_sentence_is_an_error(run: Path, saccade: Saccade) -> None:
    result = saccade("attention", run, " ")
    assert result.code == 1
    assert "sentence" in result.err


def test_a_model_without_cross_attention_is_an_error_with_advice(data: Path, tmp_path: Path, saccade: Saccade) -> None:
    arguments = ("--source", data / "train.en", "--target", data / "train.de", "--data.vocabulary", 80)
    small = ("--preset", "seq2seq-tiny", "--model.width", 16, "--training.max-steps", 1)
    trained = saccade("train", "--output", tmp_path / "run", *arguments, *small)
    assert trained.code == 0, trained.err
    result = saccade("attention", tmp_path / "run", "one")
    assert (result.code, result.out) == (1, "")
    assert "bahdanau" in result.err.splitlines()[-1]


def test_a_plot_that_cannot_be_written_is_reported_before_the_model_is_loaded(tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("attention", tmp_path / "no-model", "one", "--plot", tmp_path / "missing" / "x.png")
    assert (result.code, result.out) == (1, "")
    assert str(tmp_path / "missing") in result.err
    assert result.err.splitlines()[-1].startswith("  ")
