"""One layer at one length: the time and the peak memory of its forward and backward pass.

A worker process runs `make_handler`: it replies to a task with a measurement.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError, is_out_of_memory
from saccade.studies.complexity import peak_memory
from saccade.studies.complexity.layers import LAYERS, MEASURED_INDEX, Layer, LayerSizes
from saccade.training.preflight.process_memory import reset_process_peak_memory
from saccade.workers.messages import Message
from saccade.workers.replies import Handler

WARM_UP_LENGTH = 16  # positions of the input that loads the kernels before anything is measured
MIN_REPEATS, MAX_REPEATS = 3, 200
FLOAT_BYTES = 4
MATRICES = 3  # n x n per head in explicit attention: the weights, and two gradients
MAX_ERROR_LENGTH = 200  # characters of an error


@dataclass(frozen=True)
class Task:
    """One measurement to make: a layer at one width and length."""

    layer: str
    width: int
    length: int
    sizes: LayerSizes
    seconds: float
    """Seconds of repeated runs; at least three runs are timed."""
    memory: int
    """The maximum bytes that the layer may use besides its weights and its input."""


@dataclass(frozen=True)
class Timing:
    """Time of one direction over all repeats, in seconds."""

    median: float
    spread: float
    """Interquartile range as a share of the median."""


@dataclass(frozen=True)
class Measurement:
    """Time and memory of one layer; None, with a reason, if the layer was left out."""

    layer: str
    width: int
    length: int
    input_bytes: int
    forward: Timing | None = None
    backward: Timing | None = None
    repeats: int = 0
    forward_memory: int | None = None
    """Peak bytes of the forward pass above weights and input, including activations kept for the backward pass."""
    backward_memory: int | None = None
    """Peak bytes of the backward pass above weights and input, including activations of the forward pass."""
    kept_memory: int | None = None
    """Bytes that the warm-up run left allocated, mostly kernels compiled for this shape; not part of the peaks."""
    left_out: str | None = None
    threads: int = 0
    """Threads that torch used in the measuring process."""

    @property
    def seconds(self) -> float | None:
        """Seconds of forward and backward pass together."""
        return None if self.forward is None or self.backward is None else self.forward.median + self.backward.median

    @property
    def memory(self) -> int | None:
        """The higher of the two peaks."""
        if self.forward_memory is None or self.backward_memory is None:
            return None
        return max(self.forward_memory, self.backward_memory)


@dataclass(frozen=True)
class Peaks:
    """Memory of one run, in bytes."""

    forward: int
    backward: int
    kept: int


def make_handler(setup: Message) -> Handler:
    """Return the handler of a worker; it first imports the modules that the first backward pass would import."""
    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    return lambda request: measurement_message(measure_or_leave_out(read_task(request)))


def task_message(task: Task) -> Message:
    """Serialize a task."""
    return Message(asdict(task))


def read_task(message: Message) -> Task:
    """Deserialize a task."""
    return Task(**{**message.values, "sizes": LayerSizes(**message.values["sizes"])})


def measurement_message(found: Measurement) -> Message:
    """Serialize a measurement."""
    return Message(asdict(found))


def read_measurement(message: Message) -> Measurement:
    """Deserialize a measurement."""
    values: dict[str, Any] = dict(message.values)
    for name in ("forward", "backward"):
        values[name] = None if values[name] is None else Timing(**values[name])
    return Measurement(**values)


def measure_or_leave_out(task: Task) -> Measurement:
    """Measure in this process; after any error, the measurement is left out with the error as the reason."""
    try:
        return measure(task)
    except BaseException as error:
        return not_measured(task, f"could not be measured: {describe_error(error)}")


def describe_error(error: BaseException) -> str:
    """Describe an error in one line."""
    if is_out_of_memory(error):
        return "out of memory"
    what = error.what if isinstance(error, SaccadeError) else f"{type(error).__name__}: {error}"
    return " ".join(what.split())[:MAX_ERROR_LENGTH]


def not_measured(task: Task, reason: str) -> Measurement:
    """Return the measurement of a task that was left out."""
    return Measurement(task.layer, task.width, task.length, task.length * task.width * FLOAT_BYTES, left_out=reason)


def measure(task: Task) -> Measurement:
    """Build the layer and measure it; peaks are only valid in a process that has measured nothing before."""
    layer = LAYERS[task.layer]
    measurable = peak_memory.is_measurable()
    if not measurable and estimated_memory(task) > task.memory:
        return not_measured(task, f"is estimated to need more than {task.memory / 1e9:g} GB")
    torch.manual_seed(0)
    module = layer.build(task.width, task.sizes, MEASURED_INDEX)
    x = torch.randn(1, task.length, task.width, requires_grad=True)  # (B, T, D)
    gradient = torch.randn(1, task.length, task.width)  # (B, T, D)
    short = torch.randn(1, WARM_UP_LENGTH, task.width, requires_grad=True)
    run(layer, module, short, torch.ones_like(short))
    zero_grad(module, short)
    peaks = None
    if measurable:
        too_large = not_measured(task, f"needs more than {task.memory / 1e9:g} GB")
        try:
            with peak_memory.memory_limit(task.memory):
                peaks = measure_memory(layer, module, x, gradient)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return too_large
        if max(peaks.forward, peaks.backward) > task.memory:
            return too_large
    forward, backward = measure_time(layer, module, x, gradient, task.seconds)
    return Measurement(
        task.layer,
        task.width,
        task.length,
        task.length * task.width * FLOAT_BYTES,
        timing(forward),
        timing(backward),
        len(forward),
        None if peaks is None else peaks.forward,
        None if peaks is None else peaks.backward,
        None if peaks is None else peaks.kept,
        threads=torch.get_num_threads(),
    )


def estimated_memory(task: Task) -> int:
    """Return a lower bound on the bytes that the layer needs: its n x n matrices, or outputs and one gradient."""
    if LAYERS[task.layer].memory == 2:
        return FLOAT_BYTES * MATRICES * task.sizes.heads * task.length**2
    return FLOAT_BYTES * 2 * task.length * task.width


def measure_memory(layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> Peaks:
    """Measure the second run at this shape: the first one compiles kernels, whose code is not memory of the layer."""
    peak_memory.return_freed_memory()
    before = peak_memory.reset_peak()
    run(layer, module, x, gradient)
    zero_grad(module, x)
    base = peak_memory.reset_peak()
    outputs = layer.run(module, x)
    forward = peak_memory.peak() - base
    reset_process_peak_memory()
    torch.autograd.backward(outputs, gradient)
    backward = peak_memory.peak() - base
    del outputs
    zero_grad(module, x)
    return Peaks(forward, backward, base - before)


def measure_time(
    layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor, seconds: float
) -> tuple[list[float], list[float]]:
    """Return the seconds of every forward and every backward pass, after one warm-up run."""
    peak_memory.reuse_freed_memory()
    run(layer, module, x, gradient)
    forward: list[float] = []
    backward: list[float] = []
    end = time.perf_counter() + seconds
    while len(forward) < MIN_REPEATS or (time.perf_counter() < end and len(forward) < MAX_REPEATS):
        zero_grad(module, x)
        started = time.perf_counter()
        outputs = layer.run(module, x)
        middle = time.perf_counter()
        torch.autograd.backward(outputs, gradient)
        ended = time.perf_counter()
        forward.append(middle - started)
        backward.append(ended - middle)
        del outputs  # so that the next forward pass does not need memory in addition
    return forward, backward


def run(layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
    """Run forward and backward."""
    torch.autograd.backward(layer.run(module, x), gradient)


def zero_grad(module: nn.Module, x: Tensor) -> None:
    """Delete all gradients."""
    module.zero_grad(set_to_none=True)
    x.grad = None


def timing(seconds: list[float]) -> Timing:
    """Return the median and the relative interquartile range."""
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return Timing(middle, (high - low) / middle)
