"""Stop signals of a run."""

from __future__ import annotations

import os
import signal

import pytest

from saccade.training.runs.interruption import GracefulInterrupt


@pytest.mark.parametrize(("number", "name"), [(2, "Ctrl-C"), (15, "SIGTERM"), (1, "SIGHUP")])
def test_first_signal_is_recorded(number: int, name: str) -> None:
    before = signal.getsignal(number)
    with GracefulInterrupt() as interruption:
        assert interruption.name is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.name == name
    assert signal.getsignal(number) == before


def test_second_ctrl_c_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), GracefulInterrupt():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)


def test_ignored_signals_stay_ignored() -> None:
    """A run under nohup outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with GracefulInterrupt() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruption.name is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
