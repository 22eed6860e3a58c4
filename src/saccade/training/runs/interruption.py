"""Graceful stop on Ctrl-C and SIGTERM: finish the step, save, exit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulInterrupt:
    """While active, the first signal is only recorded; a second Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def name(self) -> str:
        """Name of the signal for log messages."""
        return "Ctrl-C" if self.signal == signal.SIGINT else "SIGTERM"
