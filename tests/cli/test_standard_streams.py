from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Saccade

from saccade.cli.main import main

COMMANDS = {
    "translate": ("translate", "{run}", "two"),
    "evaluate": ("evaluate", "{run}", "--source", "{en}", "--reference", "{de}", "--no-save", "--metric", "chrf"),
    "attention": ("attention", "{run}", "two"),
    "average": ("average", "{run}", "{run}", "--output", "{new}"),
    "export": ("export", "{run}", "--format", "huggingface", "--output", "{new}"),
    "info": ("info", "{run}"),
    "models": ("models",),
    "models --json": ("models", "--json"),
    "verify": ("verify", "{run}", "--sentences", "2"),
    "check": ("check", "--source", "{en}", "--target", "{de}", "--no-model", "--data.vocabulary", "60"),
    "complexity": ("complexity", "--layers", "fused", "--lengths", "8", "--widths", "8", "--seconds", "0.001"),
    "help": ("--help",),
    "version": ("--version",),
    "translate --help": ("translate", "--help"),
}


def words_of(name: str, run: Path, data: Path, tmp_path: Path) -> list[str]:
    names = {"run": run, "en": data / "test.en", "de": data / "test.de", "new": tmp_path / "new"}
    return [word.format(**names) for word in COMMANDS[name]]


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, run: Path, data: Path, tmp_path: Path) -> list[str]:
    """The words of each command that writes to stdout."""
    return words_of(request.param, run, data, tmp_path)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
def test_full_device(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = main(command)
    error, advice = capsys.readouterr().err.splitlines()[-2:]
    assert code == 1
    assert error.startswith("saccade: error: ")
    assert advice.startswith("  ")


def test_broken_pipe(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        code = main(command)
    assert code == 141
    assert "error" not in capsys.readouterr().err


def in_shell(words: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, which closes descriptors."""
    line = f'exec "{sys.executable}" -m saccade.cli.main "$@" {redirection}'
    return subprocess.run(["sh", "-c", line, "sh", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["translate", "evaluate", "models", "info", "version"])
def test_closed_output_is_an_error_with_advice(name: str, run: Path, data: Path, tmp_path: Path) -> None:
    done = in_shell(words_of(name, run, data, tmp_path), "<&- >&-")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2].startswith("saccade: error: ")
    assert "internal" not in done.stderr


def test_closed_input(run: Path) -> None:
    done = in_shell(["translate", str(run)], "<&-")
    assert (done.returncode, done.stdout) == (1, "")
    assert "standard input" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("  ")


def test_streams_that_a_command_does_not_need_may_be_closed(run: Path, tmp_path: Path) -> None:
    done = in_shell(["translate", str(run), "two", "--output", str(tmp_path / "out")], "<&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len((tmp_path / "out").read_text().splitlines()) == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_messages_that_cannot_be_written_change_nothing(redirection: str, run: Path) -> None:
    done = in_shell(["verify", str(run), "--sentences", "2"], redirection)
    assert done.returncode == 0
    assert "5 of 5 passed" in done.stdout
    assert in_shell(["nonsense"], redirection).returncode == 2


@pytest.mark.parametrize("option", ["--output", "--plot"])
@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
def test_output_files_on_a_full_device(option: str, run: Path, saccade: Saccade) -> None:
    command = "translate" if option == "--output" else "attention"
    result = saccade(command, run, "two", option, "/dev/full")
    assert (result.code, result.out) == (1, "")
    assert "/dev/full" in result.err
    assert result.err.splitlines()[-1].startswith("  ")
