"""Wrong commands: each ends with the right exit code, an error and advice, and overwrites nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from table import Try, read_table

from saccade.cli.main import main

COMMANDS = (
    *("train", "check", "translate", "evaluate", "attention", "compare", "complexity", "export", "import", "average"),
    *("lexicon", "models", "info", "verify", "demo", "saccade"),
)
TRIES = [one for command in COMMANDS for one in read_table(f"{command}.txt")]


def check_error(code: int, out: str, err: str, expected: int) -> None:
    """Check exit code and messages: an error in one line, advice in the next, and no traceback."""
    assert "Traceback" not in err
    assert "internal error" not in err
    assert code == expected, err
    if code:
        lines = err.splitlines()
        assert lines[-2].startswith("saccade: error: "), err
        assert lines[-1].startswith("  "), err
        assert lines[-1].strip(), err
        assert sum(line.startswith("saccade: error: ") for line in lines) == 1, err


@pytest.mark.parametrize(
    "one", [pytest.param(one, id=one.text, marks=() if one.fast else pytest.mark.slow) for one in TRIES]
)
def test_wrong_command(
    one: Try,
    workspace: Path,
    unchanged: list[str],
    time_limit: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unchanged += one.may_write
    raw = b"" if one.stdin is None else (workspace / one.stdin).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code = main(list(one.words))
    captured = capsys.readouterr()
    check_error(code, captured.out, captured.err, one.code)


def test_there_are_enough_tries() -> None:
    assert len({(*one.words, one.stdin) for one in TRIES}) == len(TRIES) >= 300
    assert sum(one.fast for one in TRIES) >= 25
