"""A worker in a process of its own: what it leaves with, and how a signal reaches it exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

LOOK = 0.2  # seconds between two looks at a worker
LONGEST_REASON = 4000  # bytes
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}
"""What a worker is told for a signal to this process; a training saves on the first two only."""


class Ended(NamedTuple):
    """What a phase left with."""

    code: int
    reason: str = ""  # of a failure, in the worker's own words


Start = Callable[[str, Path], Ended]
"""Runs a phase of the job in a file."""


def in_a_process(phase: str, job: Path) -> Ended:
    """Run a phase in a fresh process."""
    return run_process([sys.executable, "-m", "saccade.studies.comparison.launch", phase, str(job), str(os.getpid())])


def run_process(words: Sequence[str]) -> Ended:
    """Run a command with one more word: the number of an open pipe that takes the reason of a failure.

    The process has a session of its own, so that Ctrl-C in a terminal does not reach it beside what is sent from here:
    one signal, after which it may take the time that it needs to save. Only a second Ctrl-C kills it. It begins with
    these signals blocked, until it is ready for them.
    """
    reader, writer = os.pipe()
    try:
        with noted_signals() as noted:
            with blocked(STOPS):
                process = subprocess.Popen(
                    [*words, str(writer)], stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(writer,)
                )
            os.close(writer)
            try:
                code = wait_for(process, noted)
            finally:
                if process.poll() is None:  # a second Ctrl-C
                    process.kill()
                    process.wait()
        if noted:
            return Ended(128 + noted[0])
        return Ended(code, read_reason(reader))
    finally:
        os.close(reader)


def wait_for(process: subprocess.Popen[Any], noted: Sequence[int]) -> int:
    """The exit code of a process, which is told the first signal that comes."""
    told = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK)
        if noted and not told:
            process.send_signal(PASSED_ON[signal.Signals(noted[0])])
            told = True


def read_reason(reader: int) -> str:
    """What a process that has ended said about its failure."""
    os.set_blocking(reader, False)  # a process that it left behind may hold the other end
    with suppress(BlockingIOError):
        return " ".join(os.read(reader, LONGEST_REASON).decode("utf-8", "replace").split())
    return ""


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """A list of the signals that come meanwhile; a second Ctrl-C interrupts. What was ignored stays so (nohup)."""
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if noted and number == signal.SIGINT:
            raise KeyboardInterrupt
        noted.append(number)

    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def blocked(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Hold signals back; what is started here inherits that, and they come when the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def death(code: int) -> str:
    """What the exit code of a process says that did not say it itself."""
    if code == -signal.SIGKILL:
        return "its process was killed by the system, which does that when memory runs out"
    return f"its process was ended by signal {-code}" if code < 0 else f"its process left with exit code {code}"
