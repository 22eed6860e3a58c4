from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade.workers import child
from saccade.workers.messages import Message
from saccade.workers.pool import request_in_order
from saccade.workers.process import Worker, running_worker, start_worker
from saccade.workers.replies import WorkerDiedError, describe_exit
from saccade.workers.stop_signals import forwarded_signals

JOBS = "example_jobs"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="forks safely on Linux only")
COUNT = Message({"job": "count"})


def died_with(request: Message, *, fork: bool = False) -> int | None:
    """Return the exit status that the parent reports for a request that ends the worker."""
    worker = start_worker(JOBS, fork=fork)
    try:
        with pytest.raises(WorkerDiedError) as caught:
            worker.request(request)
    finally:
        worker.kill()
    return caught.value.status


def alive(process: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        os.kill(process, 0)
        if Path("/proc/self/stat").exists():
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True


def wait_for(path: Path) -> str:
    """Wait until a file exists, and return its content."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def wait_for_end(process: int) -> None:
    deadline = time.monotonic() + 60
    while alive(process):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def parent_of_a_worker(job: dict[str, str], *, fork: bool = False) -> subprocess.Popen[bytes]:
    """Start a process that starts a worker and waits for the result of this job."""
    script = (
        "from saccade.workers.messages import Message\n"
        "from saccade.workers.process import start_worker\n"
        f"start_worker({JOBS!r}, fork={fork}).request(Message({job!r}))\n"
    )
    return subprocess.Popen([sys.executable, "-c", script])


class TestRequests:
    def test_results_return_and_prints_go_to_stderr(self, capfd: pytest.CaptureFixture[str]) -> None:
        with running_worker(JOBS) as worker:
            found = worker.request(Message({"job": "double"}, {"numbers": np.arange(4)}))
            np.testing.assert_array_equal(found.arrays["numbers"], [0, 2, 4, 6])
        assert worker.process.returncode == 0
        out, err = capfd.readouterr()
        assert (out, err) == ("", "progress on stdout\n")

    def test_one_process_keeps_its_state(self) -> None:
        with running_worker(JOBS) as worker:
            first, second = worker.request(COUNT).values, worker.request(COUNT).values
        assert (first["handled"], second["handled"]) == (1, 2)
        assert first["process"] == second["process"] == worker.process.pid
        assert first["session"] != os.getsid(0)  # Ctrl-C in a terminal reaches the parent only

    @LINUX
    def test_a_fork_per_request_starts_without_state(self) -> None:
        worker = start_worker(JOBS, fork=True)
        first, second = worker.request(COUNT).values, worker.request(COUNT).values
        worker.finish()
        worker.kill()
        assert (first["handled"], second["handled"]) == (1, 1)
        assert len({first["process"], second["process"], worker.process.pid}) == 3


class TestErrors:
    def test_errors_reach_the_parent_and_the_worker_continues(self, capfd: pytest.CaptureFixture[str]) -> None:
        def error(kind: str) -> SaccadeError:
            with pytest.raises(SaccadeError) as caught:
                worker.request(Message({"job": "fail", "kind": kind}))
            return caught.value

        with running_worker(JOBS) as worker:
            found = error("saccade")
            assert (found.what, found.where, found.hint) == ("bad input", "file.txt:3", "fix it")
            assert error("memory").what == "out of memory"
            found = error("disk")
            assert (found.what, found.where) == ("No space left on device", "results.json")
            assert capfd.readouterr().err == ""
            assert error("bug").what.startswith("ZeroDivisionError: by zero")
            assert len(error("bug").what) <= 4000
            assert "Traceback" in capfd.readouterr().err
            assert worker.request(COUNT).values["handled"] == 6

    def test_an_error_in_the_setup_arrives_with_the_first_request(self) -> None:
        with pytest.raises(SaccadeError) as caught, running_worker(JOBS, Message({"error": True})) as worker:
            time.sleep(0.5)  # the worker has ended: the request meets a broken pipe
            worker.request(COUNT)
        assert (caught.value.what, caught.value.where, caught.value.hint) == ("nothing to set up", "here", "try again")

    def test_a_module_that_does_not_exist(self) -> None:
        with pytest.raises(SaccadeError) as caught, running_worker("no_such_module") as worker:
            worker.request(COUNT)
        assert caught.value.what.startswith("ModuleNotFoundError")

    def test_a_python_that_does_not_exist(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(SaccadeError):
            start_worker(JOBS)

    @pytest.mark.parametrize("fork", [False, pytest.param(True, marks=LINUX)])
    def test_exit_status_of_a_worker_that_died(self, fork: bool) -> None:
        assert died_with(Message({"job": "die", "signal": signal.SIGKILL}), fork=fork) == -signal.SIGKILL
        assert died_with(Message({"job": "die", "code": 7}), fork=fork) == 7
        assert died_with(Message({"job": "die"}), fork=fork) == 0

    def test_a_process_that_the_worker_left_behind_does_not_block(self, tmp_path: Path) -> None:
        started = tmp_path / "started"
        assert died_with(Message({"job": "leave", "started": str(started)})) == 4
        os.kill(int(started.read_text()), signal.SIGKILL)  # it still runs

    @LINUX
    def test_a_worker_survives_the_death_of_its_fork(self, tmp_path: Path) -> None:
        request = Message({"job": "die", "signal": signal.SIGKILL, "once": str(tmp_path / "once")})
        worker = start_worker(JOBS, fork=True)
        with pytest.raises(WorkerDiedError):
            worker.request(request)
        with pytest.raises(SaccadeError) as caught:
            worker.request(request)
        assert caught.value.what == "alive again"
        worker.kill()

    def test_exit_status_in_words(self) -> None:
        assert "memory" in describe_exit(-signal.SIGKILL)
        assert "memory" not in describe_exit(-signal.SIGSEGV)
        assert str(int(signal.SIGSEGV)) in describe_exit(-signal.SIGSEGV)
        assert "code 3" in describe_exit(3)
        assert len({describe_exit(status) for status in (None, 0, 3, -9, -11)}) == 5


class TestEnding:
    def test_an_exception_kills_a_busy_worker(self, tmp_path: Path) -> None:
        started = tmp_path / "started"

        def busy(worker: Worker) -> None:
            with pytest.raises(WorkerDiedError):
                worker.request(Message({"job": "sleep", "started": str(started)}))

        with pytest.raises(KeyboardInterrupt), running_worker(JOBS) as worker:
            thread = threading.Thread(target=busy, args=[worker])
            thread.start()
            process = int(wait_for(started))
            raise KeyboardInterrupt
        thread.join()
        assert not alive(process)

    @LINUX
    def test_killing_a_worker_kills_its_forks(self, tmp_path: Path) -> None:
        started = tmp_path / "started"
        worker = start_worker(JOBS, fork=True)
        request = Message({"job": "sleep", "started": str(started)})
        worker.send(request)
        process = int(wait_for(started))
        assert process != worker.process.pid
        worker.kill()
        wait_for_end(process)

    @pytest.mark.parametrize("fork", [False, pytest.param(True, marks=LINUX)])
    def test_no_worker_outlives_a_parent_that_was_killed(self, fork: bool, tmp_path: Path) -> None:
        started = tmp_path / "started"
        with parent_of_a_worker({"job": "sleep", "started": str(started)}, fork=fork) as parent:
            process = int(wait_for(started))
            parent.kill()
        wait_for_end(process)

    def test_a_worker_whose_parent_was_killed_has_time_to_save(self, tmp_path: Path) -> None:
        started, saved = tmp_path / "started", tmp_path / "saved"
        with parent_of_a_worker({"job": "save", "started": str(started), "saved": str(saved)}) as parent:
            wait_for(started)
            parent.kill()
        assert wait_for(saved) == str([int(signal.SIGTERM)])


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Restore default signal handlers: under nohup or in the background of a script, some signals are ignored."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def signal_when(started: Path, *numbers: int) -> threading.Thread:
    """Send signals to this process as soon as a file exists."""

    def send() -> None:
        wait_for(started)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.usefixtures("default_signals")
class TestSignals:
    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_worker_gets_one_signal_and_time_to_save(self, sent: int, tmp_path: Path) -> None:
        started, saved = tmp_path / "started", tmp_path / "saved"
        thread = signal_when(started, sent, signal.SIGTERM)
        with forwarded_signals() as signals, running_worker(JOBS) as worker:
            signals.forward_to(worker.process)
            found = worker.request(Message({"job": "save", "started": str(started), "saved": str(saved)}))
            thread.join()
        assert found.values["received"] == [int(sent)]
        assert saved.read_text() == str([int(sent)])
        assert signals.received == [sent, signal.SIGTERM]

    def test_a_second_ctrl_c_kills_the_worker(self, tmp_path: Path) -> None:
        started, saved = tmp_path / "started", tmp_path / "saved"
        thread = signal_when(started, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), forwarded_signals() as signals, running_worker(JOBS) as worker:
            signals.forward_to(worker.process)
            worker.request(Message({"job": "save", "started": str(started), "saved": str(saved), "seconds": 60}))
        thread.join()
        assert worker.process.returncode == -signal.SIGKILL
        assert not saved.exists()

    def test_a_signal_before_the_worker_exists_reaches_it(self) -> None:
        with forwarded_signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            with running_worker(JOBS) as worker:
                signals.forward_to(worker.process)
                with pytest.raises(WorkerDiedError) as caught:
                    worker.request(COUNT)
        assert caught.value.status == 128 + signal.SIGTERM

    def test_a_signal_during_the_import_ends_a_worker_silently(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        started = tmp_path / "started"
        with running_worker(JOBS, Message({"started": str(started)})) as worker:
            while not started.exists():
                time.sleep(0.02)
            worker.process.send_signal(signal.SIGINT)
            with pytest.raises(WorkerDiedError) as caught:
                worker.request(COUNT)
        assert caught.value.status == 128 + signal.SIGINT
        assert capfd.readouterr() == ("", "")

    def test_handlers_are_restored(self) -> None:
        with forwarded_signals():
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class TestPool:
    def test_results_come_in_order(self) -> None:
        found = list(
            request_in_order(
                range(20),
                lambda number: Message({"job": "double"}, {"numbers": np.array([number])}),
                JOBS,
                Message(),
                workers=2,
            )
        )
        assert [(item, int(result.arrays["numbers"][0])) for item, result in found] == [
            (number, 2 * number) for number in range(20)
        ]

    def test_the_setup_fails_for_all(self) -> None:
        with pytest.raises(SaccadeError):
            list(request_in_order(range(9), lambda _: COUNT, JOBS, Message({"error": True}), workers=2))


def test_a_fork_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fail)
    reply = child.reply_in_fork(COUNT, lambda request: request)
    assert reply.values["error"]["what"] == "Resource temporarily unavailable"
