"""Stop signals: forwarded to a worker once, so that it has time to save."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalForwarding:
    """Stop signals that this process received; the first one goes to the worker."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.forwarded = False

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward signals to this process, also one that was received before it was started."""
        self.process = process
        self.forward_first()

    def handle(self, number: int, _: FrameType | None) -> None:
        """Record a signal; a second Ctrl-C interrupts this process."""
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received.append(signal.Signals(number))
        self.forward_first()

    def forward_first(self) -> None:
        """Send the first signal, once: a second one could interrupt the saving."""
        if self.received and self.process is not None and not self.forwarded:
            self.forwarded = True
            self.process.send_signal(self.received[0])


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarding]:
    """Forward stop signals instead of ending on them; ignored signals stay ignored (nohup)."""
    forwarding = SignalForwarding()
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, forwarding.handle)
    try:
        yield forwarding
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def blocked_signals(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Block signals; a process that is started meanwhile inherits the mask, and pending signals arrive at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
