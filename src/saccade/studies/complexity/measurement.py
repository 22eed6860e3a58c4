"""One layer at one length: the time and the peak memory of its forward and its backward pass."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch import Tensor, nn

from saccade.errors import is_out_of_memory
from saccade.studies.complexity import resident
from saccade.studies.complexity.subjects import MEASURED_PLACE, SUBJECTS, Sizes, Subject
from saccade.training.preflight.process_memory import reset_process_peak_memory

SHORT = 16  # places of the input that loads the kernels before anything is measured
FEWEST, MOST = 3, 200  # timed runs
FLOAT_BYTES = 4
MATRICES = 3  # n x n for each head, that explicit attention holds at once: the weights, and two gradients


@dataclass(frozen=True)
class Task:
    """What to measure."""

    layer: str
    width: int
    length: int
    sizes: Sizes
    seconds: float
    """How long to repeat; at least three runs are timed however long they take."""
    memory: int
    """The most bytes that the layer may take beside its weights and its input."""


@dataclass(frozen=True)
class Timing:
    """The time of one direction over all repeats, in seconds."""

    median: float
    spread: float
    """The middle half of the repeats lies within so much, as a part of the median."""


@dataclass(frozen=True)
class Measurement:
    """What was found; times and memory are None where the layer was left out, and why is said then."""

    layer: str
    width: int
    length: int
    input_bytes: int
    forward: Timing | None = None
    backward: Timing | None = None
    repeats: int = 0
    forward_memory: int | None = None
    """The peak of the forward pass above weights and input, with all that it keeps for the backward pass."""
    backward_memory: int | None = None
    """The peak of the backward pass above weights and input, with what the forward pass kept."""
    kept_memory: int | None = None
    """What the first run left behind for good, mostly kernels compiled for this shape; not in the peaks."""
    left_out: str | None = None
    threads: int = 0
    """Those that torch took in the process that measured."""

    @property
    def seconds(self) -> float | None:
        """Forward and backward together."""
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


def measure(task: Task) -> Measurement:
    """Build the layer and measure it here: for peaks that mean something, in a process that did nothing before."""
    subject = SUBJECTS[task.layer]
    found = Measurement(task.layer, task.width, task.length, task.length * task.width * FLOAT_BYTES)
    measurable = resident.measurable()
    if not measurable and reckoned_memory(task) > task.memory:
        return left_out(found, f"is reckoned to need more than {task.memory / 1e9:g} GB")
    torch.manual_seed(0)
    layer = subject.build(task.width, task.sizes, MEASURED_PLACE)
    x = torch.randn(1, task.length, task.width, requires_grad=True)  # batch 1
    gradient = torch.randn(1, task.length, task.width)
    short = torch.randn(1, SHORT, task.width, requires_grad=True)
    run(subject, layer, short, torch.ones_like(short))
    clear(layer, short)
    peaks = None
    if measurable:
        try:
            with resident.at_most(task.memory):
                peaks = measure_memory(subject, layer, x, gradient)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return left_out(found, f"needs more than {task.memory / 1e9:g} GB")
        if max(peaks.forward, peaks.backward) > task.memory:
            return left_out(found, f"needs more than {task.memory / 1e9:g} GB")
    forward, backward = measure_time(subject, layer, x, gradient, task.seconds)
    return Measurement(
        found.layer,
        found.width,
        found.length,
        found.input_bytes,
        timing(forward),
        timing(backward),
        len(forward),
        None if peaks is None else peaks.forward,
        None if peaks is None else peaks.backward,
        None if peaks is None else peaks.kept,
        threads=torch.get_num_threads(),
    )


def reckoned_memory(task: Task) -> int:
    """Bytes that the layer takes at least, where nobody can measure them: n x n matrices, or outputs and a gradient."""
    if SUBJECTS[task.layer].memory == 2:
        return FLOAT_BYTES * MATRICES * task.sizes.heads * task.length**2
    return FLOAT_BYTES * 2 * task.length * task.width


def left_out(found: Measurement, why: str) -> Measurement:
    """The same without figures."""
    return Measurement(found.layer, found.width, found.length, found.input_bytes, left_out=why)


def measure_memory(subject: Subject, layer: nn.Module, x: Tensor, gradient: Tensor) -> Peaks:
    """The second run at this shape counts: the first compiles kernels, and their code is no memory of the layer."""
    resident.give_memory_back()
    before = resident.settle()
    run(subject, layer, x, gradient)
    clear(layer, x)
    base = resident.settle()
    outputs = subject.run(layer, x)
    forward = resident.status("VmHWM") - base
    reset_process_peak_memory()
    torch.autograd.backward(outputs, gradient)
    backward = resident.status("VmHWM") - base
    del outputs
    clear(layer, x)
    return Peaks(forward, backward, base - before)


def measure_time(
    subject: Subject, layer: nn.Module, x: Tensor, gradient: Tensor, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of every forward and every backward run, after one that is not counted."""
    resident.reuse_memory()
    run(subject, layer, x, gradient)
    forward: list[float] = []
    backward: list[float] = []
    end = time.perf_counter() + seconds
    while len(forward) < FEWEST or (time.perf_counter() < end and len(forward) < MOST):
        clear(layer, x)
        began = time.perf_counter()
        outputs = subject.run(layer, x)
        turned = time.perf_counter()
        torch.autograd.backward(outputs, gradient)
        ended = time.perf_counter()
        forward.append(turned - began)
        backward.append(ended - turned)
        del outputs  # before the next forward pass, which would else have to find memory beside it
    return forward, backward


def run(subject: Subject, layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
    """Forward and backward."""
    torch.autograd.backward(subject.run(layer, x), gradient)


def clear(layer: nn.Module, x: Tensor) -> None:
    """Forget all gradients."""
    layer.zero_grad(set_to_none=True)
    x.grad = None


def timing(seconds: list[float]) -> Timing:
    """Median and interquartile range."""
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return Timing(middle, (high - low) / middle)
