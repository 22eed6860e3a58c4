"""What a run will need: its longest batch is run before it starts, and a typical one is timed.

Nothing of the model, of its gradients or of the random numbers is changed by that.
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
from saccade.parallel_map import workers_for
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast, byte_size
from saccade.training.objectives.objective import Objective
from saccade.training.preflight.process_memory import (
    available_memory,
    forget_highest,
    highest_memory,
    memory_in_use,
)
from saccade.training.run_tracking import person_time

PROBE = 8  # the longest batch is tried with this part of its rows first
SECONDS = 4.0  # a batch that would take longer is run with fewer rows, and the rest is reckoned
REPEATS = 3  # a typical batch is timed this often,
REPEATED_SECONDS = 0.3  # but not again after this time


class Shape(NamedTuple):
    """A batch without its texts."""

    rows: int
    source: int
    target: int

    @property
    def tokens(self) -> int:
        """Of both sides."""
        return self.rows * (self.source + self.target)


class Measured(NamedTuple):
    """What a batch needs."""

    peak: int
    seconds_a_token: float


@dataclass(frozen=True)
class Forecast:
    """What a run will need of memory and time; validation and saving come on top of the time."""

    longest_batch: Shape
    peak_bytes: int
    available_bytes: int | None
    seconds_a_batch: float
    target_tokens_a_second: float
    epoch_seconds: float
    total_seconds: float | None

    @property
    def fits(self) -> bool:
        """Whether the memory is enough, as far as anybody can say."""
        return self.available_bytes is None or self.peak_bytes <= self.available_bytes

    def lines(self) -> list[str]:
        """The forecast for people."""
        rows, source, target = self.longest_batch
        room = f" of {byte_size(self.available_bytes)}" if self.available_bytes is not None else ""
        batch = f"{rows:,} pair{'s' * (rows != 1)} of {source:,} and {target:,} tokens"
        speed = f"{self.seconds_a_batch:.2g} s a batch, {self.target_tokens_a_second:,.0f} target tokens a second"
        whole = "" if self.total_seconds is None else f", the whole run {person_time(self.total_seconds)}"
        return [
            f"memory: {byte_size(self.peak_bytes)}{room} with the longest batch ({batch})",
            f"time: {speed}; an epoch {person_time(self.epoch_seconds)}{whole}, validation not counted",
        ]

    def attention(self) -> list[str]:
        """What deserves attention before the run starts, one line each."""
        if self.fits:
            return []
        return [
            f"warning: the longest batch is expected to need {byte_size(self.peak_bytes)} of memory, and there are "
            f"{byte_size(self.available_bytes or 0)}; lower --data.batch-tokens or --data.max-length"
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
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
    judge: Objective | None = None,
    autocast: Autocast = contextlib.nullcontext,
    quick: bool = False,
) -> Forecast:
    """Run the longest possible batch once and a typical one a few times, and reckon from that.

    The optimizer's two tensors a parameter are held meanwhile, with several batches an update the gradients of the ones
    before, and where a batch is worked on in parts those of the other parts. A `judge` validates, if it is not what the
    model is trained with.
    """
    with autocast():
        parts = workers_for(objective.passes * batch_tokens, device) if objective.separable else 1
    trial = Trial(model, objective, device, symbols, sizes, autocast)
    longest = longest_shape(statistics, batch_tokens)
    typical = typical_shape(statistics, batch_tokens)
    try:
        with undisturbed(model, device), held(model, copies=2 + (accumulate > 1) + parts - 1):
            model.train()
            peak, seconds_a_token = trial.measure(longest)
            if valid is not None and longest_shape(valid, batch_tokens).source > longest.source:
                model.eval()  # validation data is never filtered
                with torch.no_grad():
                    validated = replace(trial, objective=judge or objective)
                    peak = max(peak, validated.measure(longest_shape(valid, batch_tokens)).peak)
                model.train()
            # At the start of a run only what could stop it is measured: the first update must not wait for the rest.
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


def longest_shape(statistics: CorpusStatistics, batch_tokens: int) -> Shape:
    """The batch that needs most: both sides as long as the longest text, as many rows as are allowed."""
    length = max(1, statistics.longest_source, statistics.longest_target)
    return Shape(max(1, batch_tokens // length), length, length)


def typical_shape(statistics: CorpusStatistics, batch_tokens: int) -> Shape:
    """The batch of pairs of mean lengths."""
    pairs = max(1, statistics.pairs)
    source, target = round(statistics.source_tokens / pairs), round(statistics.target_tokens / pairs)
    rows = int(batch_tokens * pairs / max(1, statistics.longer_tokens))
    return Shape(max(1, rows), max(1, source), max(1, target))


@dataclass(frozen=True)
class Trial:
    """Batches of random tokens, run forward and (with gradients) backward."""

    model: nn.Module
    objective: Objective
    device: torch.device
    symbols: Symbols
    sizes: VocabularySizes
    autocast: Autocast

    def measure(self, shape: Shape) -> Measured:
        """Memory and time of such a batch; a part of it goes first, and the rest only if there is room and time."""
        before = memory_in_use(self.device)
        forget_highest(self.device)
        few = shape._replace(rows=max(1, shape.rows // PROBE))
        seconds = self.run(few)
        peak = highest_memory(self.device)
        expected = before + (peak - before) * shape.rows // few.rows
        available = available_memory(self.device)
        if few.rows == shape.rows or (available is not None and expected > available):
            return Measured(expected, seconds / few.tokens)  # the system would end the process without a word
        most = shape._replace(rows=min(shape.rows, max(few.rows, int(few.rows * SECONDS / seconds))))
        seconds = self.run(most)
        peak = highest_memory(self.device)
        return Measured(peak + (peak - before) * (shape.rows - most.rows) // most.rows, seconds / most.tokens)

    def seconds(self, shape: Shape, seconds_a_token: float) -> float:
        """How long such a batch takes, given about how long a token takes."""
        expected = seconds_a_token * shape.tokens
        some = shape._replace(rows=max(1, int(shape.rows * min(1.0, SECONDS / expected))))
        times = [self.run(some)]
        while len(times) < REPEATS and sum(times) < REPEATED_SECONDS:
            times.append(self.run(some))
        return sorted(times)[len(times) // 2] * shape.rows / some.rows

    def run(self, shape: Shape) -> float:
        """One batch, forward and backward; returns the seconds."""
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
    """Wait until a device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def random_batch(shape: Shape, symbols: Symbols, sizes: VocabularySizes) -> Batch:
    """A batch without padding, of tokens from all over the vocabulary."""
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
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Whatever happens inside, the model, its gradients and the random numbers are as before afterwards."""
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
def held(model: nn.Module, *, copies: int) -> Iterator[None]:
    """Hold some copies of all parameters: ones, since pages of zeros are not there before they are written to."""
    copied = [torch.ones_like(parameter) for parameter in model.parameters() for _ in range(copies)]
    try:
        yield
    finally:
        copied.clear()
