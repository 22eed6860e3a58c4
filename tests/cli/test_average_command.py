from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import TINY, Saccade
from safetensors.torch import load_file

from saccade.cli.main import main


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_average_of_the_last_checkpoints(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    output = tmp_path / "average"
    result = saccade("average", run, "--last", 2, "--output", output)
    assert (result.code, result.out) == (0, f"average of 2: {output}\n")
    steps = sorted((run / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))[-2:]
    first, second = weights(steps[0]), weights(steps[1])
    for name, tensor in weights(output).items():
        torch.testing.assert_close(tensor, (first[name] + second[name]) / 2)
    assert saccade("translate", output, stdin="one\n").code == 0
    assert "average of 2" in (output / "README.md").read_text()


def test_average_of_checkpoints_and_of_models(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    by_name = [run / "checkpoints" / "step-8", run / "checkpoints" / "step-12"]
    assert saccade("average", *by_name, "--output", tmp_path / "checkpoints").code == 0
    assert saccade("average", run, run / "model-last", run / "model-best", "--output", tmp_path / "same").code == 0
    torch.testing.assert_close(weights(tmp_path / "same"), weights(run / "model-best"), rtol=0.1, atol=0.1)


def test_existing_output_is_not_overwritten(run: Path, saccade: Saccade) -> None:
    result = saccade("average", run, "--last", 2, "--output", run / "model-best")
    assert result.code == 1
    assert "already exists" in result.err


def test_different_vocabularies_are_an_error(
    run: Path, data: Path, tmp_path: Path, saccade: Saccade, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = ["--source", data / "train.de", "--target", data / "train.en", "--data.vocabulary", 80]
    arguments = [
        "train",
        "--output",
        tmp_path / "x",
        *TINY,
        *swapped,
        "--data.joint",
        "false",
        "--training.max-steps",
        1,
    ]
    assert main([str(argument) for argument in arguments]) == 0
    result = saccade("average", run, tmp_path / "x", "--output", tmp_path / "average")
    assert result.code == 1
    assert "vocabulary than" in result.err
