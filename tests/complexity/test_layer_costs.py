from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from saccade.cli.main import main as command
from saccade.errors import SaccadeError
from saccade.studies.complexity import measurement, peak_memory
from saccade.studies.complexity.layers import LAYERS, LayerSizes
from saccade.studies.complexity.measurement import (
    Measurement,
    Task,
    describe_error,
    estimated_memory,
    measure,
    measure_or_leave_out,
    measurement_message,
    read_measurement,
    read_task,
    task_message,
    timing,
)
from saccade.studies.complexity.series import (
    MeasurementPlan,
    MeasuringProcess,
    measure_in,
    measuring_process,
    without_numpy_threads,
)

SIZES = LayerSizes(radius=8)
LINUX = pytest.mark.skipif(not peak_memory.is_measurable(), reason="memory is measured on Linux with glibc only")


@pytest.fixture(scope="module")
def process() -> Iterator[MeasuringProcess]:
    with measuring_process() as process:
        yield process


def task(layer: str = "explicit", length: int = 64, memory: int = 10**9, sizes: LayerSizes = SIZES) -> Task:
    return Task(layer, 8, length, sizes, 0.001, memory)


@pytest.mark.parametrize("name", list(LAYERS))
def test_every_layer_can_be_measured(name: str, process: MeasuringProcess) -> None:
    found = process.measure(task(name))
    assert (found.layer, found.width, found.length, found.left_out) == (name, 8, 64, None)
    assert found.input_bytes == 64 * 8 * 4
    assert found.repeats >= 3
    assert found.forward is not None
    assert found.backward is not None
    assert 0 < found.forward.median < 60
    assert found.seconds == found.forward.median + found.backward.median
    assert found.threads >= 1
    assert read_measurement(measurement_message(found)) == found
    assert read_task(task_message(task(name))) == task(name)


def test_the_command_measures(process: MeasuringProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saccade.studies.complexity.series.measuring_process", lambda: nullcontext(process))
    sizes = ["--layers", "convolution", "--lengths", "64,128", "--widths", "8", "--path-lengths", "4"]
    assert command(["complexity", *sizes, "--seconds", "0.001", "--json", str(tmp_path / "cost.json")]) == 0
    found = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert [(one["length"], one["left_out"]) for one in found["measurements"]] == [(64, None), (128, None)]
    assert found["machine"]["threads"] == found["measurements"][0]["threads"] >= 1


@LINUX
def test_memory_counts_the_weights_of_explicit_attention(process: MeasuringProcess) -> None:
    length = 1024
    matrix = 4 * length**2
    explicit, fused = measure_in(process, MeasurementPlan(("explicit", "fused"), (length,), (8,), SIZES, 0.001, 10**9))
    assert explicit.memory is not None
    assert fused.memory is not None
    # The softmax is kept; its gradient and the gradient of the scores exist at the same time.
    assert 2.5 * matrix < explicit.memory < 5 * matrix
    assert fused.memory < matrix
    assert estimated_memory(task(length=length)) == pytest.approx(explicit.memory, rel=0.1)


@LINUX
def test_longer_sequences_of_a_layer_that_needs_too_much_are_skipped(process: MeasuringProcess) -> None:
    plan = MeasurementPlan(("explicit",), (1024, 1 << 20), (8,), SIZES, 0.001, 5_000_000)
    long, longest = measure_in(process, plan)  # a million positions would need terabytes
    assert long.left_out == longest.left_out == "needs more than 0.005 GB"
    assert long.seconds is None
    assert long.memory is None


@LINUX
def test_an_allocation_beyond_the_limit_fails_instead_of_swapping(process: MeasuringProcess) -> None:
    found = process.measure(task(length=1 << 19, memory=5_000_000))  # 1.1 TB for one matrix
    assert found.left_out == "needs more than 0.005 GB"


def test_an_error_leaves_one_measurement_out(process: MeasuringProcess) -> None:
    found = process.measure(task("convolution", sizes=LayerSizes(kernel=4)))
    assert found.left_out is not None
    assert found.left_out.startswith("could not be measured: ")
    assert "odd kernel" in found.left_out
    assert process.measure(task("convolution")).left_out is None


def test_any_error_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: BaseException) -> str:
        def fail(_: Task) -> Measurement:
            raise error

        monkeypatch.setattr(measurement, "measure", fail)
        reason = measure_or_leave_out(task()).left_out
        assert reason is not None
        return reason.removeprefix("could not be measured: ")

    assert raising(RuntimeError("could not create a\nprimitive")) == "RuntimeError: could not create a primitive"
    assert raising(MemoryError()) == "out of memory"
    assert raising(SystemExit(1)) == "SystemExit: 1"
    assert raising(SaccadeError("no such layer", where="here")) == "no such layer"
    assert len(describe_error(ValueError("x" * 10_000))) == 200


HANDLERS = """
import os, signal
from saccade.workers.messages import Message

def make_handler(setup):
    return handle

def handle(request):
    task = request.values
    if task["layer"] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if task["layer"] == "ends its parent":
        os.kill(os.getppid(), signal.SIGKILL)
    found = {"layer": "", "width": 0, "length": 0, "input_bytes": 0, "forward": None, "backward": None}
    return Message({**found, "left_out": f"{os.getpid()} {os.getppid()}"})
"""


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without torch that replies with its process and its parent, or dies."""
    (tmp_path / "naming.py").write_text(HANDLERS, encoding="utf-8")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr("saccade.studies.complexity.series.HANDLER_MODULE", "naming")


def processes(found: Measurement) -> list[int]:
    """The numbers of the process that measured and of its parent."""
    assert found.left_out is not None
    return [int(number) for number in found.left_out.split()]


@pytest.mark.usefixtures("handlers")
class TestProcesses:
    @LINUX
    def test_one_worker_forks_for_each_task_and_survives_its_forks(self) -> None:
        with measuring_process(fork=True) as process:
            first = processes(process.measure(task()))
            killed = process.measure(task("dies")).left_out
            second = processes(process.measure(task()))
        assert killed is not None
        assert killed.startswith("could not be measured: the measuring process was killed by signal 9")
        assert first[1] == second[1] != os.getpid()
        assert first[0] != second[0]

    @LINUX
    def test_a_worker_that_was_killed_is_started_again(self) -> None:
        with measuring_process(fork=True) as process:
            first = processes(process.measure(task()))
            killed = process.measure(task("ends its parent")).left_out
            second = processes(process.measure(task()))
        assert killed is not None
        assert killed.startswith("could not be measured: the measuring process was killed by signal 9")
        assert first[1] != second[1]

    def test_a_new_process_for_each_task_if_forking_is_not_safe(self) -> None:
        with measuring_process(fork=False) as process:
            found = [processes(process.measure(task())) for _ in range(2)]
            assert process.worker is None
            killed = process.measure(task("dies")).left_out
        assert [parent for _, parent in found] == [os.getpid()] * 2
        assert found[0] != found[1]
        assert killed is not None
        assert f"signal {signal.SIGKILL}" in killed


def test_memory_is_estimated_if_it_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "is_measurable", lambda: False)

    def no_layer(*_: object) -> None:
        raise AssertionError("nothing is built")

    monkeypatch.setattr(measurement, "measure_time", no_layer)
    length, heads = 1000, 2
    bound = 3 * heads * length**2 * 4
    found = measure(task(length=length, memory=bound - 1, sizes=LayerSizes(heads=heads)))
    assert found.left_out == "is estimated to need more than 0.024 GB"
    assert estimated_memory(task("fused", length)) == 2 * length * 8 * 4


def test_numpy_threads_are_limited_only_if_torch_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.__config__, "show", lambda: "Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release")
    assert without_numpy_threads() == {"OPENBLAS_NUM_THREADS": "1"}
    monkeypatch.setattr(torch.__config__, "show", lambda: "Build settings: BLAS_INFO=open, BUILD_TYPE=Release")
    assert without_numpy_threads() == {}


def test_median_and_spread_by_hand() -> None:
    found = timing([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median == 3.0
    assert found.spread == pytest.approx(2 / 3)
