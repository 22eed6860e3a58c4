from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from command_line import TINY, CommandResult, Saccade

from saccade.cli.demo import write_numbers
from saccade.cli.main import main
from saccade.data.number_words import number_pairs


@pytest.fixture
def saccade(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Saccade:
    """Run a command in this process: `saccade("translate", run, stdin="…")`."""

    def call(*arguments: object, stdin: str | bytes = b"") -> CommandResult:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train, valid and test files of number words."""
    path = tmp_path_factory.mktemp("numbers")
    write_numbers(path, number_pairs(train=300, valid=10, test=8, below=1000, seed=1))
    return path


@pytest.fixture(scope="session")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps, trained by `saccade train`."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    arguments = ["train", "--output", path, "--training.max-steps", 12, "--training.checkpoint-every", 4, *TINY]
    for option, name in (("--source", "train.en"), ("--target", "train.de")):
        arguments += [option, data / name, option.replace("--", "--valid-"), data / name.replace("train", "valid")]
    assert main([str(argument) for argument in arguments]) == 0
    return path
