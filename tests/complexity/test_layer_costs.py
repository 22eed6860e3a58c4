from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from saccade.cli.main import main as command
from saccade.studies.complexity import measurement, resident
from saccade.studies.complexity.measurement import Measurement, Task, measure, reckoned_memory, timing
from saccade.studies.complexity.series import Plan, Worker, measured, without_threads_of_numpy, worker
from saccade.studies.complexity.subjects import SUBJECTS, Sizes
from saccade.studies.complexity.worker import answer, answer_of_a_fork, measurement_from
from saccade.studies.complexity.worker import main as serve

SIZES = Sizes(radius=8)
LINUX = pytest.mark.skipif(not resident.measurable(), reason="memory is measured on Linux with glibc only")


@pytest.fixture(scope="module")
def measuring() -> Iterator[Worker]:
    with worker() as process:
        yield process


def task(layer: str = "explicit", length: int = 64, memory: int = 10**9, sizes: Sizes = SIZES) -> Task:
    return Task(layer, 8, length, sizes, 0.001, memory)


@pytest.mark.parametrize("name", list(SUBJECTS))
def test_every_layer_can_be_measured(name: str, measuring: Worker) -> None:
    found = measuring.measure(task(name))
    assert (found.layer, found.width, found.length, found.left_out) == (name, 8, 64, None)
    assert found.input_bytes == 64 * 8 * 4
    assert found.repeats >= 3
    assert found.forward is not None
    assert found.backward is not None
    assert 0 < found.forward.median < 60
    assert found.seconds == found.forward.median + found.backward.median
    assert found.threads >= 1


def test_the_command_measures(measuring: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saccade.studies.complexity.series.worker", lambda: nullcontext(measuring))
    sizes = ["--layers", "convolution", "--lengths", "64,128", "--widths", "8", "--path-lengths", "4"]
    assert command(["complexity", *sizes, "--seconds", "0.001", "--json", str(tmp_path / "cost.json")]) == 0
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert [(one["length"], one["left_out"]) for one in found["measurements"]] == [(64, None), (128, None)]
    assert found["machine"]["threads"] == found["measurements"][0]["threads"] >= 1


@LINUX
def test_memory_counts_the_weights_of_explicit_attention(measuring: Worker) -> None:
    length = 1024
    matrix = 4 * length**2
    explicit, fused = measured(Plan(("explicit", "fused"), (length,), (8,), SIZES, 0.001, 10**9), measuring)
    assert explicit.memory is not None
    assert fused.memory is not None
    # The softmax is kept, and its gradient and that of the scores stand beside it.
    assert 2.5 * matrix < explicit.memory < 5 * matrix
    assert fused.memory < matrix
    assert reckoned_memory(task(length=length)) == pytest.approx(explicit.memory, rel=0.1)


@LINUX
def test_what_needs_too_much_is_left_out_and_not_tried_longer(measuring: Worker) -> None:
    plan = Plan(("explicit",), (1024, 1 << 20), (8,), SIZES, 0.001, 5_000_000)
    long, longest = measured(plan, measuring)  # a million places would need terabytes
    assert long.left_out == longest.left_out == "needs more than 0.005 GB"
    assert long.seconds is None
    assert long.memory is None


@LINUX
def test_an_allocation_beyond_the_limit_fails_instead_of_swapping(measuring: Worker) -> None:
    found = measuring.measure(task(length=1 << 19, memory=5_000_000))  # 1.1 TB for one matrix
    assert found.left_out == "needs more than 0.005 GB"


def test_a_fault_leaves_one_measurement_out(measuring: Worker) -> None:
    found = measuring.measure(task("convolution", sizes=Sizes(kernel=4)))
    assert found.left_out is not None
    assert found.left_out.startswith("could not be measured: ")
    assert "odd kernel" in found.left_out
    assert measuring.measure(task("convolution")).left_out is None


def test_whatever_goes_wrong_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: BaseException) -> str:
        def fail(_: Task) -> Measurement:
            raise error

        monkeypatch.setattr("saccade.studies.complexity.worker.measure", fail)
        said = answer(task())["fault"]
        assert isinstance(said, str)
        return said

    assert raising(RuntimeError("could not create a\nprimitive")) == "RuntimeError: could not create a primitive"
    assert raising(MemoryError()) == "memory ran out"
    assert raising(SystemExit(1)) == "SystemExit: 1"
    assert len(raising(ValueError("x" * 10_000))) == 200


@LINUX
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_that_is_killed_is_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the OOM killer does; the fork touches no thread of this process, since nothing is computed in it."""

    def killed(_: Task) -> Measurement:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr("saccade.studies.complexity.worker.measure", killed)
    assert "ended by signal 9" in answer_of_a_fork(task())["fault"]
    monkeypatch.setattr("saccade.studies.complexity.worker.measure", lambda _: os._exit(0))
    assert "without an answer" in answer_of_a_fork(task())["fault"]


DYING = """
import os, pathlib, signal, sys
note = pathlib.Path(sys.argv[1])
input()
if not note.exists():
    note.touch()
    os.kill(os.getpid(), signal.SIGKILL)
print('{"fault": "started again"}', flush=True)
"""

TELLING = """
import os, sys
input()
print('{"fault": "process %d %s"}' % (os.getpid(), "with --fork" if "--fork" in sys.argv else "without a fork"))
"""

FORKING = """
import os, sys, time
if os.fork() == 0:
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Another program in the place of the worker, without torch; returns the file that it is told to write."""

    def replace(program: str) -> Path:
        script, command, note = tmp_path / "program.py", tmp_path / "python", tmp_path / "note"
        script.write_text(program)
        command.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{script}' '{note}' \"$@\"\n")
        command.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(command))
        return note

    return replace


def test_a_worker_that_was_killed_is_answered_for_and_started_again(stand_in: Callable[[str], Path]) -> None:
    stand_in(DYING)
    with worker(fork=True) as dying:
        killed, again = dying.measure(task()), dying.measure(task())
    reason = "the measuring process was ended by signal 9, as the system does when memory runs out"
    assert killed.left_out == f"could not be measured: {reason}"
    assert again.left_out == "could not be measured: started again"


def test_a_fork_does_not_survive_its_worker(stand_in: Callable[[str], Path]) -> None:
    note = stand_in(FORKING)
    with worker(fork=True) as forking:
        forking.process = forking.start()
        child = int(wait_for(note))
        os.kill(child, 0)
    end = time.monotonic() + 60
    while alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(child)


def wait_for(note: Path) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if note.exists() and note.read_text().endswith("\n"):
            return note.read_text()
        time.sleep(0.05)
    raise AssertionError("the stand-in did not start")


def alive(process: int) -> bool:
    """Whether it still runs; a dead one that nobody waits for does not."""
    try:
        os.kill(process, 0)
        if Path("/proc/self/stat").exists():
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True


def test_a_fresh_process_for_each_task_where_a_fork_is_not_safe(stand_in: Callable[[str], Path]) -> None:
    stand_in(TELLING)
    with worker(fork=False) as fresh:
        told = [fresh.measure(task()).left_out for _ in range(2)]
        assert fresh.process is None
    assert len(set(told)) == 2
    assert all("without a fork" in str(said) for said in told)
    with worker(fork=True) as forking:
        assert "with --fork" in str(forking.measure(task()).left_out)


def test_a_worker_that_does_not_fork_answers_each_line_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps(asdict(task(length=length))) + "\n" for length in (1, 2))
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    monkeypatch.setattr(sys, "argv", ["worker"])
    output = os.open(tmp_path / "answers", os.O_WRONLY | os.O_CREAT)
    monkeypatch.setattr(os, "dup", lambda _: output)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it forked"))
    monkeypatch.setattr("saccade.studies.complexity.worker.end_with_the_parent", lambda: None)
    monkeypatch.setattr(
        "saccade.studies.complexity.worker.measure", lambda one: Measurement(one.layer, 8, one.length, 0)
    )
    serve()
    answers = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [measurement_from(values).length for values in answers] == [1, 2]


def test_memory_is_reckoned_where_it_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "measurable", lambda: False)

    def no_layer(*_: object) -> None:
        raise AssertionError("nothing is built")

    monkeypatch.setattr(measurement, "measure_time", no_layer)
    length, heads = 1000, 2
    bound = 3 * heads * length**2 * 4
    found = measure(task(length=length, memory=bound - 1, sizes=Sizes(heads=heads)))
    assert found.left_out == "is reckoned to need more than 0.024 GB"
    assert reckoned_memory(task("fused", length)) == 2 * length * 8 * 4


def test_threads_of_numpy_are_pinned_only_if_torch_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setattr(torch.__config__, "show", lambda: "Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release")
    assert without_threads_of_numpy()["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setattr(torch.__config__, "show", lambda: "Build settings: BLAS_INFO=open, BUILD_TYPE=Release")
    assert without_threads_of_numpy()["OPENBLAS_NUM_THREADS"] == "7"


def test_median_and_spread_by_hand() -> None:
    found = timing([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median == 3.0
    assert found.spread == pytest.approx(2 / 3)
