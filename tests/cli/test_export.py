from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from command_line import Saccade
from safetensors.torch import load_file

TEXT = "one hundred and five\nseventy-two\n"


def test_huggingface_round_trip(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    folder, back = tmp_path / "huggingface", tmp_path / "back"
    result = saccade("export", run, "--format", "huggingface", "--output", folder)
    assert (result.code, result.out) == (0, f"huggingface: {folder}\n"), result.err
    assert result.err.startswith("huggingface: transformer, ")
    assert "AutoModelForSeq2SeqLM" in result.err
    assert result.err.splitlines()[-1].endswith(str(folder))
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    result = saccade("import", folder, "--output", back)
    assert (result.code, result.out) == (0, f"model: {back}\n"), result.err
    assert f"use it: saccade translate {back} < in > out" in result.err
    ours, again = (load_file(path / "model.safetensors") for path in (run / "model-best", back))
    assert all(ours[name].equal(tensor) for name, tensor in again.items())
    assert ours.keys() == again.keys()
    for settings in ((), ("--beam", 1)):
        expected = saccade("translate", run, *settings, stdin=TEXT)
        assert saccade("translate", back, *settings, stdin=TEXT).out == expected.out


def test_onnx(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    folder = tmp_path / "onnx"
    folder.mkdir()  # an empty folder is accepted
    result = saccade("export", run, "--format", "onnx", "--output", folder)
    assert (result.code, result.out) == (0, f"onnx: {folder}\n"), result.err
    assert json.loads((folder / "saccade.json").read_text())["family"] == "transformer"
    assert len(result.err.splitlines()) == 3


@pytest.mark.parametrize("command", ["export", "import"])
def test_existing_output_is_not_overwritten(command: str, run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "mine").write_text("precious")
    options = ("--format", "huggingface") if command == "export" else ()
    result = saccade(command, run, *options, "--output", tmp_path)
    assert (result.code, result.out) == (1, "")
    assert "already exists" in result.err
    assert (tmp_path / "mine").read_text() == "precious"


def test_unsupported_model_leaves_no_files(data: Path, tmp_path: Path, saccade: Saccade) -> None:
    arguments = ("--source", data / "train.en", "--target", data / "train.de", "--data.vocabulary", 80)
    small = ("--preset", "bahdanau-tiny", "--model.width", 16, "--training.max-steps", 1)
    assert saccade("train", "--output", tmp_path / "run", *arguments, *small).code == 0
    result = saccade("export", tmp_path / "run", "--format", "huggingface", "--output", tmp_path / "out")
    assert (result.code, result.out) == (1, "")
    assert "--format onnx" in result.err
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_unknown_format_lists_the_valid_ones(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("export", run, "--format", "tensorflow", "--output", tmp_path / "x")
    assert result.code == 2
    assert "ctranslate2" in result.err


def test_importing_a_saccade_model_is_an_error(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("import", run / "model-best", "--output", tmp_path / "x")
    assert result.code == 1
    assert "model-best" in result.err


def test_missing_format_lists_the_valid_ones_in_one_line(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("export", run, "--output", tmp_path / "x")
    assert result.code == 2
    assert "huggingface, onnx, ctranslate2" in result.err.splitlines()[0]
    assert "\\" not in result.err


def test_advice_fits_the_error_of_the_system(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    advice = {}
    for number in (errno.EACCES, errno.EROFS, errno.ENOSPC):

        def fail(*_: object, number: int = number, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "mkdir", fail)
        result = saccade("export", run, "--format", "huggingface", "--output", tmp_path / "x")
        assert result.code == 1
        advice[number] = result.err.splitlines()[-1]
    assert len(set(advice.values())) == len(advice)
    assert [number for number, text in advice.items() if "free some space" in text] == [errno.ENOSPC]


def test_import_of_a_missing_folder_names_the_folder(tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("import", tmp_path / "missing", "--output", tmp_path / "x")
    assert result.code == 1
    assert "no such folder" in result.err
    assert "config.json" not in result.err
