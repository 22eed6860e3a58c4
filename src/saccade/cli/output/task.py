"""The long task of a command: a progress bar, one line at the end, and what was written if Ctrl-C ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade import messages

NOTHING_WRITTEN = "nothing was written"


class Task:
    """Work that takes a while, in units such as lines."""

    def __init__(self, total: int | None, unit: str) -> None:
        self.total, self.unit = total, unit
        self.done = 0
        self.written = NOTHING_WRITTEN  # what the user has after an interruption
        self.began = time.monotonic()
        self.show: Callable[[int], None] = lambda count: None

    def advance(self, count: int = 1) -> None:
        """Report finished units."""
        self.done += count
        self.show(count)

    def interruption(self) -> str:
        """Return the progress of the task, to follow `interrupted`: ` after 3 of 8 lines; nothing was written`."""
        total = "" if self.total is None else f" of {self.total:,}"
        return f" after {self.done:,}{total} {self.unit}; {self.written}" if self.unit else f"; {self.written}"

    def finish(self, what: str, where: Path | str | None = None) -> None:
        """Say what was done, how long it took, and where the result is; short work without a file says nothing."""
        seconds = time.monotonic() - self.began
        if where is None and seconds < messages.PROGRESS_DELAY:
            return
        from saccade.training.units import format_duration

        time_taken = f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds)
        messages.note(f"{what} in {time_taken}" + ("" if where is None else f": {where}"))


@contextmanager
def task(what: str, total: int | None = None, unit: str = "", *, bar: bool = True) -> Iterator[Task]:
    """Show the progress of the block; Ctrl-C raises a KeyboardInterrupt that says how far the task came."""
    found = Task(total, unit)
    try:
        if not bar:
            yield found
            return
        with messages.progress(what, total) as found.show:
            yield found
    except KeyboardInterrupt:
        raise KeyboardInterrupt(found.interruption()) from None
