"""Messages to the user on stderr: warnings, notes, details and progress bars, filtered by --quiet and --verbose.

A message that cannot be written (closed pipe, full device) never ends the work: later messages are discarded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any

PROGRESS_DELAY = 2.0  # seconds of work before a progress bar appears


class Level(IntEnum):
    """What is shown: only warnings and errors, also notes, or also details."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level = Level.NORMAL


def level() -> Level:
    """The level of this process."""
    return _level


def set_level(value: Level) -> None:
    """Set the level of this process."""
    global _level
    _level = value


def warn(text: str) -> None:
    """Show a warning: something the user should act on."""
    write(text)


def note(text: str) -> None:
    """Show a note, such as what was done and where the result is; --quiet hides it."""
    if _level >= Level.NORMAL:
        write(text)


def detail(text: str) -> None:
    """Show a detail that --verbose asks for."""
    if _level >= Level.VERBOSE:
        write(text)


def write(text: str) -> None:
    """Write lines to stderr; after a failure, discard everything that is written to it."""
    if sys.stderr is None:  # the descriptor was closed when Python started
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # ValueError: the stream is closed
        discard_stderr()


def discard_stderr() -> None:
    """Connect stderr to the null device; buffered text that cannot be written would fail again at interpreter exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


def shows_progress() -> bool:
    """Whether progress bars are drawn: stderr is a terminal, and the level is not quiet."""
    with suppress(AttributeError, ValueError):  # no stderr, or a closed one
        return _level >= Level.NORMAL and sys.stderr.isatty()
    return False


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that reports how many more units are done; a bar appears on a terminal after two seconds.

    The bar is removed at the end. Without a `total` it shows the number of units.
    """
    if not shows_progress():
        yield lambda count: None
        return
    bar = ProgressBar(what, total)
    try:
        yield bar.advance
    finally:
        bar.close()


class ProgressBar:
    """A bar on the terminal, drawn by rich once the work has lasted `PROGRESS_DELAY` seconds."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.began = time.monotonic()
        self.bar: Any = None
        self.task: Any = None

    def advance(self, count: int = 1) -> None:
        """Add finished units, and draw the bar if it is time."""
        self.done += count
        if self.bar is None and time.monotonic() - self.began >= PROGRESS_DELAY:
            self.open()
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)

    def open(self) -> None:
        """Start to draw; rich is imported only now, because it takes longer than most commands."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        self.bar = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
        self.task = self.bar.add_task(self.what, total=self.total)
        self.bar.start()

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            with suppress(OSError, ValueError):
                self.bar.stop()
