from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from saccade.errors import SaccadeError
from saccade.studies.comparison.phases import PhaseEnd, phase_end, run_in_worker
from saccade.workers.messages import Message
from saccade.workers.replies import WorkerDiedError


def end_of(outcome: Message | Exception) -> PhaseEnd:
    """Return how a phase ends if its worker replies with a message or an error."""

    def send(request: Message) -> Message:
        assert request.values == {"phase": "train", "job": "job.json"}
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return phase_end(send, "train", Path("job.json"))


def test_results_and_errors() -> None:
    assert end_of(Message({"interrupted": None})) == PhaseEnd()
    assert end_of(Message({"interrupted": 130})) == PhaseEnd(interrupted=130)
    error = SaccadeError("is missing", where="a.txt", hint="restore it")
    assert end_of(error) == PhaseEnd(failure="a.txt: is missing; restore it")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_exits_on_a_stop_signal_was_interrupted(number: int) -> None:
    assert end_of(WorkerDiedError(128 + number)) == PhaseEnd(interrupted=128 + number)


def test_a_worker_that_died_failed() -> None:
    for status in (-signal.SIGKILL, -signal.SIGSEGV, 3):
        end = end_of(WorkerDiedError(status))
        assert end.interrupted is None
        assert end.failure is not None
        assert str(abs(status)) in end.failure


def test_a_signal_interrupts_the_phase(tmp_path: Path) -> None:
    def send() -> None:
        while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    thread = threading.Thread(target=send)
    try:
        os.mkfifo(tmp_path / "job.json")  # the worker waits for a writer, as for a long training
        thread.start()
        assert run_in_worker("train", tmp_path / "job.json") == PhaseEnd(interrupted=128 + signal.SIGTERM)
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
