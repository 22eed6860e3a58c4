"""Running the `saccade` command in this process, with its own standard streams."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple

from saccade.cli.main import main


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def command(*arguments: object, stdin: bytes = b"") -> CommandResult:
    """Call `saccade` with some arguments."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    finally:
        sys.stdin = before
    texts: list[str] = []
    for stream in (out, err):
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        texts.append(stream.buffer.getvalue().decode("utf-8"))
    return CommandResult(code, *texts)


def check_answer(answer: CommandResult) -> None:
    """Check that the exit code and the message are those of a user error: no traceback, no internal error."""
    assert answer.code in (0, 1, 2), answer
    for words in ("Traceback", "internal error"):
        assert words not in answer.err, answer.err
    if answer.code:
        assert answer.err.splitlines()[-2 if "\n  " in answer.err else -1].startswith("saccade: error: "), answer.err
        unprintable = {letter for letter in answer.err if not (letter.isprintable() or letter == "\n")}
        assert not unprintable, unprintable
