"""Error messages on stderr and exit codes; tracebacks only with --debug."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from typing import NamedTuple

import typer

from saccade import messages
from saccade.errors import SaccadeError, is_out_of_memory, printable, system_advice

INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE, which not every system has


def signal_exit_code(signal_name: str) -> int:
    """Return the exit code of a run that a signal interrupted."""
    return INTERRUPTED if signal_name == "Ctrl-C" else 128 + signal.Signals[signal_name]


class ErrorReport(NamedTuple):
    """The message and the exit code of a failed command."""

    message: str | None
    exit_code: int


def report(error: BaseException, *, debug: bool) -> int:
    """Print the error message and return the exit code."""
    if isinstance(error, OSError):
        discard_output()
    if debug:
        messages.write("".join(traceback.format_exception(error)).rstrip("\n"))
    described = describe_error(error)
    if described.message:
        messages.write(f"saccade: {printable(described.message, keep=chr(10))}")
    return described.exit_code


def describe_error(error: BaseException) -> ErrorReport:
    """Return the message and the exit code for any exception."""
    if isinstance(error, SaccadeError):
        return ErrorReport(f"error: {error}", error.exit_code)
    if isinstance(error, typer.TyperException):
        return ErrorReport(f"error: {parser_message(error)}\n  see saccade --help", error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return ErrorReport(f"interrupted{error}", INTERRUPTED)  # the error says how much was written
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, closed the pipe
        return ErrorReport(None, BROKEN_PIPE)
    if isinstance(error, OSError):
        return ErrorReport(f"error: {describe_os_error(error)}", 1)
    if is_out_of_memory(error):
        return ErrorReport("error: out of memory\n  lower --data.batch-tokens or --decoding.batch-tokens", 1)
    kind = type(error).__name__
    advice = "this is a bug in Saccade: run again with --debug for the traceback"
    return ErrorReport(f"internal error: {kind}: {error}\n  {advice}", 1)


def parser_message(error: typer.TyperException) -> str:
    """Return the message of the option parser in our style: no capital, no full stop."""
    found = error.format_message().replace("Value error, ", "").replace("Input should", "must")
    message = " ".join(found.split())  # it may list choices over lines
    return message[:1].lower() + message[1:].removesuffix(".")


def describe_os_error(error: OSError) -> str:
    """Return the path, the error of the operating system, and advice."""
    what = error.strerror or str(error) or type(error).__name__
    where = "the output" if error.filename is None else os.fsdecode(error.filename)
    return f"{where}: {what}\n  {system_advice(error) or 'check the path, or choose another'}"


def discard_output() -> None:
    """Discard buffered output that cannot be written; the interpreter would fail on it again at exit."""
    with contextlib.suppress(OSError, ValueError):  # the stream is not a file
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
