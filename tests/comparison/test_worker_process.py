from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from saccade.studies.comparison.process import Ended, death, run_process

UNBLOCK = "import os, pathlib, signal, sys, time\nsignal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 16))\n"


@pytest.fixture
def heard() -> Iterator[None]:
    """No signal is ignored, as it would be under nohup or in the background of a script."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def signal_when(ready: Path, number: int) -> threading.Thread:
    """Send a signal to this process as soon as a file is there."""

    def send() -> None:
        while not ready.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)],
)
def test_a_worker_gets_one_signal_and_the_time_to_save(sent: int, received: int, tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    # It notes a signal while it works. While it saves, any other one would kill it.
    program = UNBLOCK + (
        "seen = []\n"
        "for number in (1, 2, 15): signal.signal(number, lambda number, _: seen.append(number))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "while not seen: time.sleep(0.05)\n"
        "for number in (1, 2, 15): signal.signal(number, signal.SIG_DFL)\n"
        "time.sleep(1)\n"
        f"pathlib.Path({str(saved)!r}).write_text(str(seen))\n"
    )
    thread = signal_when(ready, sent)
    assert run_process([sys.executable, "-c", program]) == Ended(128 + sent)
    thread.join()
    assert saved.read_text() == str([int(received)])


def test_a_worker_is_out_of_reach_of_the_terminal(tmp_path: Path) -> None:
    program = f"import os, pathlib\npathlib.Path({str(tmp_path / 'session')!r}).write_text(str(os.getsid(0)))\n"
    assert run_process([sys.executable, "-c", program]) == Ended(0)
    assert int((tmp_path / "session").read_text()) != os.getsid(0)


def test_the_reason_comes_through_the_pipe() -> None:
    program = "import os, sys\nos.write(int(sys.argv[-1]), b'no  room\\n left')\nsys.exit(3)\n"
    assert run_process([sys.executable, "-c", program]) == Ended(3, "no room left")
    assert run_process([sys.executable, "-c", "import os; os._exit(7)"]) == Ended(7, "")


def test_a_worker_that_cannot_begin_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.json").write_text("{}", encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "saccade.studies.comparison.launch",
        "plan",
        str(tmp_path / "job.json"),
        str(os.getpid()),
    ]
    ended = run_process(words)
    assert ended.code != 0
    assert "is no job of a comparison" in ended.reason


def test_a_signal_during_the_import_ends_a_worker_without_a_word(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    folder = tmp_path / "torch"  # stands for the real one, and takes long
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"import pathlib, time\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)\n", encoding="utf-8"
    )
    words = [sys.executable, "-m", "saccade.studies.comparison.launch", "plan", "job.json", str(os.getpid()), "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=environment) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == b""
        assert process.returncode == 130


def test_a_worker_whose_comparison_was_killed_stops_as_on_sigterm(tmp_path: Path) -> None:
    begun, stopped = tmp_path / "begun", tmp_path / "stopped"
    orphan = UNBLOCK + (
        "from saccade.studies.comparison.launch import watch\n"
        "def stop(*_):\n"
        f"    pathlib.Path({str(stopped)!r}).touch(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "watch(os.getppid())\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    call = f"run_process([sys.executable, '-c', {orphan!r}])"
    parent = f"import sys\nfrom saccade.studies.comparison.process import run_process\n{call}\n"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    for _ in range(400):
        if stopped.exists():
            break
        time.sleep(0.05)
    assert stopped.exists()


def test_exit_codes_in_words() -> None:
    assert "memory" in death(-9)
    assert death(-11) == "its process was ended by signal 11"
    assert death(3) == "its process left with exit code 3"
