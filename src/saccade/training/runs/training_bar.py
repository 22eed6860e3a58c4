"""The progress bar of a run on a terminal."""

from __future__ import annotations

import sys
from typing import IO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from saccade import messages


class TrainingBar:
    """A bar that appears when it is first drawn; elsewhere than on a terminal, and with --quiet, nothing is drawn."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def draw(self, description: str, fraction: float | None) -> None:
        """Draw the bar with a description; `fraction` of the work is done, None if unknown."""
        if self._bar is None:
            if not messages.shows_progress():
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            stream = cast(IO[str], messages.ErrorDiscardingStream(sys.stderr))
            console = Console(file=stream, highlight=False, soft_wrap=True)
            self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0 if fraction is not None else None)
        assert self._task is not None
        self._bar.update(self._task, description=description, completed=fraction or 0.0)

    def stop(self) -> None:
        """Remove the bar."""
        bar, self._bar = self._bar, None
        if bar:
            bar.stop()
