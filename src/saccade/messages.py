"""Messages to the user on stderr: warnings, notes, details and progress bars, filtered by --quiet and --verbose.

A message that cannot be written (closed pipe, full device) never ends the work: later messages are discarded.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import IO, Any, cast

LEVEL_VARIABLE = "SACCADE_MESSAGE_LEVEL"  # environment variable with the level of the parent of a worker process
PROGRESS_DELAY = 2.0  # seconds of work before a progress bar appears


class Level(IntEnum):
    """Verbosity: QUIET shows warnings and errors, NORMAL also notes and progress, VERBOSE also details."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level = Level.NORMAL
_bar: ProgressBar | None = None  # the innermost progress bar of this process


def level() -> Level:
    """Return the verbosity of this process."""
    return _level


def set_level(value: Level) -> None:
    """Set the verbosity of this process."""
    global _level
    _level = value


def level_for_workers() -> dict[str, str]:
    """Return environment variables that give a worker process the verbosity of this process."""
    return {LEVEL_VARIABLE: _level.name}


def set_level_of_worker() -> None:
    """Set the verbosity of this worker process to that of its parent."""
    set_level(Level[os.environ.get(LEVEL_VARIABLE, Level.NORMAL.name)])


def warn(text: str) -> None:
    """Show a warning: something the user should act on."""
    write(text)


def note(text: str) -> None:
    """Show a note, such as what was done and where the result is; --quiet hides it."""
    if _level >= Level.NORMAL:
        write(text)


def detail(text: str) -> None:
    """Show a detail, which is hidden without --verbose."""
    if _level >= Level.VERBOSE:
        write(text)


def write(text: str) -> None:
    """Write lines to stderr, above the progress bar; after a failure, discard all later output to stderr."""
    if sys.stderr is None:  # the descriptor was closed when Python started
        return
    try:
        if _bar is None or not _bar.print(text):
            print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # ValueError: the stream is closed
        discard_stderr()


def discard_stderr() -> None:
    """Connect stderr to the null device; buffered text that cannot be written would fail again at interpreter exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


class ErrorDiscardingStream:
    """A stream for rich that discards text which cannot be written: rich also draws from a thread of its own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered; after a failure, discard everything that is written to stderr."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            discard_stderr()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def shows_progress() -> bool:
    """Return whether progress bars are drawn: stderr is a terminal, and --quiet is not set."""
    with suppress(AttributeError, ValueError):  # no stderr, or a closed one
        return _level >= Level.NORMAL and sys.stderr.isatty()
    return False


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that reports how many more units are done; a bar appears on a terminal after two seconds.

    The bar is removed at the end. Without a `total` it shows the number of units, if any are reported, and the time.
    A bar inside the block of another one is not drawn.
    """
    global _bar
    if _bar is not None or not shows_progress():
        yield lambda count: None
        return
    _bar = ProgressBar(what, total)
    try:
        yield _bar.advance
    finally:
        bar, _bar = _bar, None
        bar.close()


class ProgressBar:
    """A bar on the terminal, drawn by rich once the work has lasted `PROGRESS_DELAY` seconds."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.bar: Any = None
        self.task: Any = None
        self.lock = threading.RLock()
        self.closed = False
        # A thread opens the bar, because some tasks, such as a conversion, report no progress.
        self.timer = threading.Timer(PROGRESS_DELAY, self.open)
        self.timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started: work without a bar
            self.timer.start()

    def advance(self, count: int = 1) -> None:
        """Add finished units."""
        self.done += count
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)

    def open(self) -> None:
        """Start to draw; rich is imported only now, because it takes longer than most commands."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self.lock, suppress(OSError, ValueError):
            if self.closed:
                return
            columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
            if self.total is not None or self.done:
                columns.append(MofNCompleteColumn())
            columns.append(TimeElapsedColumn() if self.total is None else TimeRemainingColumn())
            console = Console(file=cast(IO[str], ErrorDiscardingStream(sys.stderr)), highlight=False)
            # Results on stdout must not be redirected to the console of the bar, which is stderr.
            bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            self.task = bar.add_task(self.what, total=self.total, completed=self.done)
            bar.start()
            self.bar = bar

    def print(self, text: str) -> bool:
        """Print lines above the bar; False if it is not drawn."""
        with self.lock:
            if self.bar is None:
                return False
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return True

    def close(self) -> None:
        """Remove the bar."""
        self.timer.cancel()
        with self.lock, suppress(OSError, ValueError):
            self.closed = True
            if self.bar is not None:
                self.bar.stop()
                self.bar = None
