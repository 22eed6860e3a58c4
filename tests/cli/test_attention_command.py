from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Saccade

SENTENCE = "three hundred and twenty-one"
PNG = b"\x89PNG\r\n"


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


def test_heat_maps_as_png(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    one, heads = tmp_path / "one.png", tmp_path / "heads.png"
    options = ["--target", "dreihundert"]
    for path, more in ((one, []), (heads, ["--heads"])):
        result = saccade("attention", run, SENTENCE, "--png", path, *more, *options)
        assert (result.code, result.out) == (0, "")
        assert result.err.splitlines()[-1].endswith(str(path))
    assert one.read_bytes().startswith(PNG)
    assert heads.read_bytes().startswith(PNG)
    assert one.read_bytes() != heads.read_bytes()


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


def test_a_picture_that_cannot_be_written_is_reported_before_the_model_is_loaded(
    tmp_path: Path, saccade: Saccade
) -> None:
    result = saccade("attention", tmp_path / "no-model", "one", "--png", tmp_path / "missing" / "x.png")
    assert (result.code, result.out) == (1, "")
    assert str(tmp_path / "missing") in result.err
    assert result.err.splitlines()[-1].startswith("  ")
