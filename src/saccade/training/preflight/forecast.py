"""Forecast of memory and time: run the longest batch before training, and time a typical one.

Model, gradients and random number generators are unchanged afterwards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.cache.corpus_statistics import CorpusStatistics
from saccade.data.sampling.batches import Batch
from saccade.errors import SaccadeError, is_out_of_memory
from saccade.interface import Source, VocabularySizes
from saccade.parallel_map import worker_count
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast, format_bytes
from saccade.training.objectives.objective import Objective
from saccade.training.preflight.process_memory import (
    available_memory,
    memory_in_use,
    peak_memory,
    reset_peak_memory,
)
from saccade.training.runs.tracking import format_duration

PROBE_FRACTION = 8  # the longest batch is first run with 1/8 of its rows
MAX_SECONDS = 4.0  # a batch that would take longer is run with fewer rows and extrapolated
REPEATS = 3  # timings of a typical batch,
REPEAT_SECONDS = 0.3  # but no further one after this time


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
class Forecast:
    """Expected memory and time of a run; the time does not include validation and saving."""

    longest_batch: BatchShape
    peak_bytes: int
    available_bytes: int | None
    seconds_a_batch: float
    target_tokens_a_second: float
    epoch_seconds: float
    total_seconds: float | None

    @property
    def fits(self) -> bool:
        """Whether the memory is enough; True if the available memory is unknown."""
        return self.available_bytes is None or self.peak_bytes <= self.available_bytes

    def lines(self) -> list[str]:
        """Format the forecast for the log."""
        rows, source, target = self.longest_batch
        room = f" of {format_bytes(self.available_bytes)}" if self.available_bytes is not None else ""
        batch = f"{rows:,} pair{'s' * (rows != 1)} of {source:,} and {target:,} tokens"
        speed = f"{self.seconds_a_batch:.2g} s per batch, {self.target_tokens_a_second:,.0f} target tokens per second"
        whole = "" if self.total_seconds is None else f", the whole run {format_duration(self.total_seconds)}"
        return [
            f"memory: {format_bytes(self.peak_bytes)}{room} with the longest batch ({batch})",
            f"time: {speed}; an epoch {format_duration(self.epoch_seconds)}{whole}, without validation",
        ]

    def warnings(self) -> list[str]:
        """Return warnings to show before the run starts, one line each."""
        if self.fits:
            return []
        return [
            f"warning: the longest batch is expected to need {format_bytes(self.peak_bytes)} of memory, but only "
            f"{format_bytes(self.available_bytes or 0)} are available; lower --data.batch-tokens or --data.max-length"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as plain data."""
        return {**asdict(self), "longest_batch": self.longest_batch._asdict(), "fits": self.fits}


def forecast(
    model: nn.Module,
    objective: Objective,
    statistics: CorpusStatistics,
    *,
    batch_tokens: int,
    accumulate: int,
    device: torch.device,
    symbols: Symbols,
    sizes: VocabularySizes,
    batches_an_epoch: int | None = None,
    total_updates: float | None = None,
    processes: int = 1,
    valid: CorpusStatistics | None = None,
    validation_objective: Objective | None = None,
    autocast: Autocast = contextlib.nullcontext,
    quick: bool = False,
) -> Forecast:
    """Run the longest possible batch once and a typical one several times, and extrapolate.

    Copies of the parameters stand in for the optimizer's two moments, for accumulated gradients, and for the gradients
    of batch parts that run in parallel. `validation_objective` is used for validation if it differs from `objective`.
    """
    with autocast():
        parts = worker_count(objective.passes * batch_tokens, device) if objective.separable else 1
    trial = Trial(model, objective, device, symbols, sizes, autocast)
    longest = longest_shape(statistics, batch_tokens)
    typical = typical_shape(statistics, batch_tokens)
    try:
        with preserve_state(model, device), allocate_copies(model, copies=2 + (accumulate > 1) + parts - 1):
            model.train()
            peak, seconds_a_token = trial.measure(longest)
            if valid is not None and longest_shape(valid, batch_tokens).source > longest.source:
                model.eval()  # validation data is never filtered
                with torch.no_grad():
                    validated = replace(trial, objective=validation_objective or objective)
                    peak = max(peak, validated.measure(longest_shape(valid, batch_tokens)).peak)
                model.train()
            # `quick`, at the start of a run, measures only what could stop it, so that training begins sooner.
            seconds = seconds_a_token * typical.tokens if quick else trial.seconds(typical, seconds_a_token)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        rows, source, target = longest
        raise SaccadeError(
            f"a batch of {rows:,} pairs of {source:,} and {target:,} tokens does not fit into the memory of {device}",
            do="lower --data.batch-tokens (and raise --training.accumulate by the same factor), or --data.max-length",
        ) from None
    batches = batches_an_epoch or -(-statistics.longer_tokens // batch_tokens)
    tokens = statistics.target_tokens / max(1, batches)
    return Forecast(
        longest_batch=longest,
        peak_bytes=peak,
        available_bytes=available_memory(device),
        seconds_a_batch=seconds,
        target_tokens_a_second=processes * tokens / seconds,
        epoch_seconds=batches * seconds / processes,
        total_seconds=None if total_updates is None else total_updates * accumulate * seconds / processes,
    )


def longest_shape(statistics: CorpusStatistics, batch_tokens: int) -> BatchShape:
    """Return the shape that needs most memory: both sides as long as the longest text, as many rows as allowed."""
    length = max(1, statistics.longest_source, statistics.longest_target)
    return BatchShape(max(1, batch_tokens // length), length, length)


def typical_shape(statistics: CorpusStatistics, batch_tokens: int) -> BatchShape:
    """Return the shape of a batch of pairs of mean length."""
    pairs = max(1, statistics.pairs)
    source, target = round(statistics.source_tokens / pairs), round(statistics.target_tokens / pairs)
    rows = int(batch_tokens * pairs / max(1, statistics.longer_tokens))
    return BatchShape(max(1, rows), max(1, source), max(1, target))


@dataclass(frozen=True)
class Trial:
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
