"""Peak memory and time of one batch, measured with random tokens.

Model, gradients and random number generators are unchanged afterwards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.sampling.batches import Batch
from saccade.interface import Source, VocabularySizes
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast
from saccade.training.objectives.objective import Objective
from saccade.training.preflight.process_memory import (
    available_memory,
    memory_in_use,
    peak_memory,
    reset_peak_memory,
)

PROBE_FRACTION = 8  # the longest batch is first run with 1/8 of its pairs
MAX_SECONDS = 4.0  # a batch that would take longer is run with fewer pairs and extrapolated
REPEATS = 3  # timings of a typical batch,
REPEAT_SECONDS = 0.3  # but none is started after this time


class BatchShape(NamedTuple):
    """Number of pairs and lengths of a batch without padding."""

    rows: int
    source: int
    target: int

    @property
    def tokens(self) -> int:
        """Number of source and target tokens."""
        return self.rows * (self.source + self.target)


class Measurement(NamedTuple):
    """Peak memory and speed of a batch."""

    peak: int  # bytes
    seconds_a_token: float


@dataclass(frozen=True)
class BatchTrial:
    """Runs batches of random tokens forward and, with gradients enabled, backward."""

    model: nn.Module
    objective: Objective
    device: torch.device
    symbols: Symbols
    sizes: VocabularySizes
    autocast: Autocast

    def measure(self, shape: BatchShape) -> Measurement:
        """Measure memory and time of a batch; a small part runs first, more only if memory and time allow."""
        before = memory_in_use(self.device)
        reset_peak_memory(self.device)
        few = shape._replace(rows=max(1, shape.rows // PROBE_FRACTION))
        seconds = self.run(few)
        peak = peak_memory(self.device)
        expected = before + (peak - before) * shape.rows // few.rows
        available = available_memory(self.device)
        if few.rows == shape.rows or (available is not None and expected > available):
            return Measurement(expected, seconds / few.tokens)  # the system would kill the process
        most = shape._replace(rows=min(shape.rows, max(few.rows, int(few.rows * MAX_SECONDS / seconds))))
        seconds = self.run(most)
        peak = peak_memory(self.device)
        return Measurement(peak + (peak - before) * (shape.rows - most.rows) // most.rows, seconds / most.tokens)

    def seconds(self, shape: BatchShape, seconds_a_token: float) -> float:
        """Time a batch, given the approximate time per token."""
        expected = seconds_a_token * shape.tokens
        some = shape._replace(rows=max(1, int(shape.rows * min(1.0, MAX_SECONDS / expected))))
        times = [self.run(some)]
        while len(times) < REPEATS and sum(times) < REPEAT_SECONDS:
            times.append(self.run(some))
        return sorted(times)[len(times) // 2] * shape.rows / some.rows

    def run(self, shape: BatchShape) -> float:
        """Run one batch forward and backward; return the seconds."""
        batch = random_batch(shape, self.symbols, self.sizes).to(self.device)
        began = time.perf_counter()
        with self.autocast():
            loss = self.objective.loss(self.model, batch)
        if loss.total.requires_grad:
            loss.total.backward()  # type: ignore[no-untyped-call]
        float(loss.total.detach())  # waits for the device
        synchronize(self.device)
        seconds = time.perf_counter() - began
        for parameter in self.model.parameters():
            parameter.grad = None
        return seconds


def synchronize(device: torch.device) -> None:
    """Wait until all work on a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def random_batch(shape: BatchShape, symbols: Symbols, sizes: VocabularySizes) -> Batch:
    """Return a batch of random tokens without padding."""
    generator = torch.Generator().manual_seed(0)
    lowest = max(symbols.pad, symbols.begin, symbols.end, symbols.unknown) + 1

    def tokens(length: int, size: int) -> Tensor:
        ids = torch.randint(min(lowest, size - 1), size, (shape.rows, length), generator=generator)
        ids[:, -1] = symbols.end
        return ids  # (B, length)

    source, target = tokens(shape.source, sizes.source), tokens(shape.target, sizes.target)
    prefix = target.roll(1, dims=1)
    prefix[:, 0] = symbols.begin
    mask = torch.ones_like(target, dtype=torch.bool)
    real = torch.ones_like(source, dtype=torch.bool)
    return Batch(Source(source, real), prefix, target, mask, indices=tuple(range(shape.rows)))


@contextlib.contextmanager
def preserve_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore modes, buffers and gradients of the model and the random number generators on exit."""
    modes = {module: module.training for module in model.modules()}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = [device] if device.type == "cuda" else []
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, saved in buffers:
                buffer.copy_(saved)


@contextlib.contextmanager
def allocate_copies(model: nn.Module, *, copies: int) -> Iterator[None]:
    """Allocate copies of all parameters, filled with ones: the kernel does not allocate pages of zeros."""
    copied = [torch.ones_like(parameter) for parameter in model.parameters() for _ in range(copies)]
    try:
        yield
    finally:
        copied.clear()
