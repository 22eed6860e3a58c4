"""Errors as a person sees them: one message on stderr and an exit code; a traceback only on request."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import traceback
from typing import NamedTuple

import typer

from saccade.errors import SaccadeError, is_out_of_memory, printable

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
BROKEN_PIPE = 128 + 13  # SIGPIPE, which not every system has

ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or write elsewhere",
    errno.EDQUOT: "your quota is used up: free some space, or write elsewhere",
    errno.EACCES: "check the permissions, or choose another place",
    errno.EPERM: "check the permissions, or choose another place",
    errno.EROFS: "the place is read-only: choose another one",
    errno.ENOENT: "check the path; it is relative to where you run this",
    errno.EISDIR: "name a file, not a directory",
    errno.ENOTDIR: "a part of the path is a file: check the path",
}


class Answer(NamedTuple):
    """What the command leaves with."""

    message: str | None
    exit_code: int


def report(error: BaseException, *, debug: bool) -> int:
    """Say what went wrong and return the exit code."""
    if isinstance(error, OSError):
        abandon_output()
    if debug:
        traceback.print_exception(error)
    answer = answer_to(error)
    if answer.message:
        print("saccade:", printable(answer.message, keep="\n"), file=sys.stderr)
    return answer.exit_code


def answer_to(error: BaseException) -> Answer:
    """The message and the exit code for any error."""
    if isinstance(error, SaccadeError):
        return Answer(f"error: {error}", error.exit_code)
    if isinstance(error, typer.TyperException):
        return Answer(f"error: {sentence(error)}\n  see saccade --help", error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Answer("interrupted", INTERRUPTED)
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
        return Answer(None, BROKEN_PIPE)
    if isinstance(error, OSError):
        return Answer(f"error: {system_fault(error)}", 1)
    if is_out_of_memory(error):
        return Answer("error: out of memory\n  lower the batch: --data.batch-tokens or --decoding.batch-tokens", 1)
    kind = type(error).__name__
    return Answer(f"internal error: {kind}: {error}\n  this is a fault of Saccade: run again with --debug", 1)


def sentence(error: typer.TyperException) -> str:
    """The parser's message in the style of all others: no capital, no full stop."""
    message = error.format_message().strip().replace("Value error, ", "")
    return message[:1].lower() + message[1:].removesuffix(".")


def system_fault(error: OSError) -> str:
    """What the system refused, where, and what to do."""
    what = error.strerror or str(error) or type(error).__name__
    where = "the output" if error.filename is None else os.fsdecode(error.filename)
    advice = ADVICE.get(error.errno or 0)
    return f"{where}: {what}" + (f"\n  {advice}" if advice else "")


def abandon_output() -> None:
    """Give up what is still buffered, or the interpreter would try again and complain when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file has nothing to give up
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
