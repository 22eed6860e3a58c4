"""Entry point of a worker process.

    python -P -m saccade.workers.child MODULE PARENT [--fork]

The first message on stdin is the setup, all others are requests; replies go to stdout. The worker ends when its input
ends. If its parent is killed, it ends as on SIGTERM.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import IO, NoReturn

from saccade import messages
from saccade.workers.messages import Message, read_message, write_message
from saccade.workers.process import FORK
from saccade.workers.replies import Handler, death_reply, error_reply, reply_to
from saccade.workers.stop_signals import STOP_SIGNALS

POLL_SECONDS = 0.5  # between two checks whether the parent is alive
PR_SET_PDEATHSIG = 1  # Linux: prctl.h


def exit_immediately(number: int, _: FrameType | None) -> None:
    """Exit at once: the signal handler during imports, when there is nothing to save."""
    os._exit(128 + number)


def raise_exit(number: int, _: FrameType | None) -> NoReturn:
    """Raise SystemExit: the signal handler after imports; a training replaces it by one that saves."""
    raise SystemExit(128 + number)


def stop_with_parent(parent: int) -> None:
    """Send SIGTERM to this process when its parent has died."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def die_with_parent() -> None:
    """Let Linux kill this process when its parent has died; a process that forks must not have a watching thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def serve(module: str, requests: IO[bytes], replies: IO[bytes], *, fork: bool) -> None:
    """Reply to requests until the input ends."""
    setup = read_message(requests)
    if setup is None:
        return
    try:
        handler: Handler = importlib.import_module(module).make_handler(setup)
    except Exception as error:
        write_message(replies, error_reply(error))
        return
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is exit_immediately:
            signal.signal(number, raise_exit)
    while (request := read_message(requests)) is not None:
        write_message(replies, reply_in_fork(request, handler) if fork else reply_to(request, handler))


def reply_in_fork(request: Message, handler: Handler) -> Message:
    """Handle a request in a fork of this process, so that earlier requests do not change its peak memory."""
    reader, writer = os.pipe()
    try:
        child = os.fork()  # no kernel has run in this process, so it has no threads that a fork would lose
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return error_reply(error)
    if child == 0:
        try:
            die_with_parent()
            with os.fdopen(writer, "wb") as stream:
                write_message(stream, reply_to(request, handler))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        try:
            reply = read_message(stream)
        except (EOFError, ValueError):
            reply = None
    _, status = os.waitpid(child, 0)
    return death_reply(os.waitstatus_to_exitcode(status)) if reply is None else reply


def main(arguments: list[str]) -> None:
    """Serve the parent over the standard streams; everything else that is printed goes to stderr."""
    module, parent, *options = arguments
    messages.set_level_of_worker()
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, exit_immediately)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked by the parent until here
    fork = FORK in options
    if fork:
        die_with_parent()
    else:
        stop_with_parent(int(parent))
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(module, sys.stdin.buffer, replies, fork=fork)
    except (BrokenPipeError, EOFError):  # the parent has died
        os._exit(1)  # the interpreter would try to flush the broken pipe


if __name__ == "__main__":
    main(sys.argv[1:])
