from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Saccade
from safetensors.torch import load_file

TEXT = "one hundred and five\nseventy-two\n"


def test_there_and_back(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    folder, back = tmp_path / "huggingface", tmp_path / "back"
    answer = saccade("export", run, "--format", "huggingface", "--output", folder)
    assert (answer.code, answer.out) == (0, f"huggingface: {folder}\n"), answer.err
    assert answer.err.startswith("huggingface: transformer, ")
    assert "AutoModelForSeq2SeqLM" in answer.err.splitlines()[-1]
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    answer = saccade("import", folder, "--output", back)
    assert (answer.code, answer.out) == (0, f"model: {back}\n"), answer.err
    assert answer.err.splitlines()[-1] == f"use it: saccade translate {back} < in > out"
    ours, again = (load_file(path / "model.safetensors") for path in (run / "model-best", back))
    assert all(ours[name].equal(tensor) for name, tensor in again.items())
    assert ours.keys() == again.keys()
    for settings in ((), ("--beam", 1)):
        expected = saccade("translate", run, *settings, stdin=TEXT)
        assert saccade("translate", back, *settings, stdin=TEXT).out == expected.out


def test_onnx(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    folder = tmp_path / "onnx"
    folder.mkdir()  # an empty folder is as good as none
    answer = saccade("export", run, "--format", "onnx", "--output", folder)
    assert (answer.code, answer.out) == (0, f"onnx: {folder}\n"), answer.err
    assert json.loads((folder / "saccade.json").read_text())["family"] == "transformer"
    assert len(answer.err.splitlines()) == 2


@pytest.mark.parametrize("verb", ["export", "import"])
def test_nothing_is_overwritten(verb: str, run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "mine").write_text("precious")
    options = ("--format", "huggingface") if verb == "export" else ()
    answer = saccade(verb, run, *options, "--output", tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert "already exists" in answer.err
    assert (tmp_path / "mine").read_text() == "precious"


def test_what_a_format_cannot_express_leaves_nothing(data: Path, tmp_path: Path, saccade: Saccade) -> None:
    arguments = ("--source", data / "train.en", "--target", data / "train.de", "--data.vocabulary", 80)
    small = ("--preset", "bahdanau-tiny", "--model.width", 16, "--training.max-steps", 1)
    assert saccade("train", "--output", tmp_path / "run", *arguments, *small).code == 0
    answer = saccade("export", tmp_path / "run", "--format", "huggingface", "--output", tmp_path / "out")
    assert (answer.code, answer.out) == (1, "")
    assert "this model is no Transformer" in answer.err
    assert "--format onnx" in answer.err
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_formats_are_named(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    answer = saccade("export", run, "--format", "tensorflow", "--output", tmp_path / "x")
    assert answer.code == 2
    assert "ctranslate2" in answer.err


def test_a_folder_of_ours_is_no_folder_of_theirs(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    answer = saccade("import", run / "model-best", "--output", tmp_path / "x")
    assert answer.code == 1
    assert "is a model of Saccade already" in answer.err
