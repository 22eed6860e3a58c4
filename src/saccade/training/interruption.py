"""Ctrl-C and SIGTERM: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While active, the first signal is only noted; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def name(self) -> str:
        """What a person calls the signal."""
        return "Ctrl-C" if self.signal == signal.SIGINT else "SIGTERM"
