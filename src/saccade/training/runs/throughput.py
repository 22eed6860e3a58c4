"""Training speed in tokens per second."""

from __future__ import annotations

import time


class Throughput:
    """Tokens per second over the last updates, without pauses."""

    def __init__(self, window: int = 50) -> None:
        self._window = window
        self._marks: list[tuple[float, int]] = []
        self._last: float | None = None

    def add(self, tokens: int) -> None:
        """Count the tokens of an update that has just ended."""
        now = time.perf_counter()
        if self._last is not None:
            self._marks = [*self._marks[1 - self._window :], (now - self._last, tokens)]
        self._last = now

    def pause(self) -> None:
        """Leave out the time until the next update."""
        self._last = None

    def tokens_per_second(self) -> float:
        """Return the speed; 0 before the second update."""
        seconds = sum(mark[0] for mark in self._marks)
        return sum(mark[1] for mark in self._marks) / seconds if seconds else 0.0
