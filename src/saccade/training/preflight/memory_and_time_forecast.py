"""Forecast of memory and time: run the longest batch before training, and time a typical one."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from saccade.data.cache.corpus_statistics import CorpusStatistics
from saccade.errors import SaccadeError, is_out_of_memory
from saccade.interface import VocabularySizes
from saccade.parallel_map import worker_count
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast
from saccade.training.objectives.objective import Objective
from saccade.training.preflight.batch_trial import BatchShape, BatchTrial, allocate_copies, preserve_state
from saccade.training.preflight.process_memory import available_memory
from saccade.training.units import format_bytes, format_duration


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
        run = "" if self.total_seconds is None else f", the run {format_duration(self.total_seconds)}"
        return [
            f"memory: {format_bytes(self.peak_bytes)}{room} with the longest batch ({batch})",
            f"time: {speed}; an epoch {format_duration(self.epoch_seconds)}{run}, without validation",
        ]

    def warnings(self) -> list[str]:
        """Return warnings to show before the run starts, one line each."""
        if self.fits:
            return []
        return [
            f"the longest batch is expected to need {format_bytes(self.peak_bytes)} of memory, but only "
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

    Copies of the parameters take the memory of the optimizer's two moments, of accumulated gradients, and of the
    gradients of batch parts that run in parallel. `validation_objective` is for validation, by default `objective`.
    """
    with autocast():
        parts = worker_count(objective.passes * batch_tokens, device) if objective.separable else 1
    trial = BatchTrial(model, objective, device, symbols, sizes, autocast)
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
            hint="lower --data.batch-tokens (and raise --training.accumulate by an equal factor), or --data.max-length",
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
    """Return the shape that needs most memory: both sides as long as the longest text, as many pairs as allowed."""
    length = max(1, statistics.longest_source, statistics.longest_target)
    return BatchShape(max(1, batch_tokens // length), length, length)


def typical_shape(statistics: CorpusStatistics, batch_tokens: int) -> BatchShape:
    """Return the shape of a batch of pairs of mean length."""
    pairs = max(1, statistics.pairs)
    source, target = round(statistics.source_tokens / pairs), round(statistics.target_tokens / pairs)
    rows = int(batch_tokens * pairs / max(1, statistics.longer_tokens))
    return BatchShape(max(1, rows), max(1, source), max(1, target))
