"""Replies of a worker: the result of a handler, the error that it raised, or the exit status of its fork."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from saccade.errors import SaccadeError, is_out_of_memory
from saccade.workers.messages import Message

Handler = Callable[[Message], Message]
"""Function from a request to its result; it runs in the worker."""

MAX_ERROR_LENGTH = 4000  # characters of an error message


class WorkerDiedError(SaccadeError):
    """A worker that ended without a reply."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"a worker process {describe_exit(status)}")
        self.status = status


def describe_exit(status: int | None) -> str:
    """Describe how a process ended, from its exit code or minus its signal; None if it is still running."""
    if status is None:
        return "stopped answering"
    if status == -signal.SIGKILL:
        return "was killed by signal 9, as the system does when memory runs out"
    return f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}, without a reply"


def reply_to(request: Message, handler: Handler) -> Message:
    """Handle a request; return its result or its error as a reply."""
    try:
        result = handler(request)
    except Exception as error:
        return error_reply(error)
    return Message({"result": result.values}, result.arrays)


def error_reply(error: Exception) -> Message:
    """Return the reply that reports an error; an unexpected one is printed with its traceback."""
    what, where, hint = str(error), None, None
    if isinstance(error, SaccadeError):
        what, where, hint = error.what, error.where, error.hint
    elif is_out_of_memory(error):
        what = "out of memory"
    elif isinstance(error, OSError) and error.strerror:
        what, where = error.strerror, None if error.filename is None else os.fsdecode(error.filename)
    else:
        traceback.print_exception(error)
        what = f"{type(error).__name__}: {error}"
    return Message({"error": {"what": what[:MAX_ERROR_LENGTH], "where": where, "hint": hint}})


def death_reply(status: int) -> Message:
    """Return the reply that reports a fork that ended without a result."""
    return Message({"died": status})


def result_of(reply: Message) -> Message:
    """Return the result in a reply, or raise the SaccadeError or WorkerDiedError that the reply reports."""
    values = reply.values
    if "died" in values:
        raise WorkerDiedError(values["died"])
    if "error" in values:
        raise SaccadeError(values["error"]["what"], where=values["error"]["where"], hint=values["error"]["hint"])
    return Message(values["result"], reply.arrays)
