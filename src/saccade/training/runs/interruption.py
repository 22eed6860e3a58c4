"""Graceful stop on Ctrl-C, SIGTERM and SIGHUP: finish the update, save, exit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

from saccade.workers.stop_signals import STOP_SIGNALS


class GracefulInterrupt:
    """While active, the first signal is only recorded; a second Ctrl-C raises KeyboardInterrupt.

    Signals that were ignored before stay ignored: nohup ignores SIGHUP.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number

    @property
    def name(self) -> str | None:
        """Name of the recorded signal for messages, None without one."""
        if self.signal is None:
            return None
        return "Ctrl-C" if self.signal == signal.SIGINT else signal.Signals(self.signal).name
