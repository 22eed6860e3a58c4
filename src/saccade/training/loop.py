"""The training loop for every model and every objective.

Random numbers and data order are functions of (seed, step, batch index within the step) or (seed, epoch, index). So a
resumed run repeats the uninterrupted one, and neither gradient accumulation nor the number of processes changes the
result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import nn

from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import Batch, Indices, collate
from saccade.data.tokenizers.bpe_dropout import BpeDropout
from saccade.distributed.group import SINGLE_PROCESS, Group
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast
from saccade.training.config import TrainingConfig
from saccade.training.gradient_accumulation import NotFiniteError, accumulate, random_key
from saccade.training.objectives.objective import ObjectiveSchedule
from saccade.training.optimizers import make_optimizer, scale_and_clip

BPE_DROPOUT_STREAM = 1  # separates the random keys of BPE dropout from those of the model's dropout


@dataclass
class Progress:
    """Progress of a run: plain data, saved in every checkpoint."""

    step: int = 0
    position: EpochPosition = field(default_factory=EpochPosition)  # position of the next batch in the data
    seconds: float = 0.0  # spent in training and validation; the only field that depends on the clock
    source_tokens: int = 0
    target_tokens: int = 0
    flops: float = 0.0
    best: float | None = None  # best value of the criterion so far
    best_step: int = 0
    stale: int = 0  # validations since the best one
    recent: list[dict[str, float]] = field(default_factory=list)  # losses since the last log line


@dataclass(frozen=True)
class Update:
    """Statistics of one update; losses are means over the objective's count."""

    step: int
    loss: float
    metrics: dict[str, float]
    gradient_norm: float
    learning_rate: float
    source_tokens: int
    target_tokens: int
    passes: int  # forward passes per example


class Loop:
    """Iterates over the data and updates the model; the caller validates and saves between updates."""

    def __init__(
        self,
        model: nn.Module,
        objective_at: ObjectiveSchedule,
        optimizer: torch.optim.Optimizer,
        sampler: BatchSampler,
        *,
        symbols: Symbols,
        learning_rate: Callable[[int], float],
        seed: int,
        accumulate: int = 1,
        clip_norm: float = 0.0,
        device: torch.device | str = "cpu",
        group: Group = SINGLE_PROCESS,
        autocast: Autocast = contextlib.nullcontext,
        progress: Progress | None = None,
        bpe_dropout: BpeDropout | None = None,
    ) -> None:
        self.model = model
        self.objective_at = objective_at
        self.optimizer = optimizer
        self.sampler = sampler
        self.symbols = symbols
        self.learning_rate = learning_rate
        self.seed = seed
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.device = torch.device(device)
        self.group = group
        self.autocast = autocast
        self.progress = progress or Progress()
        self.bpe_dropout = bpe_dropout

    def updates(self) -> Iterator[Update]:
        """Yield updates without end, epoch after epoch, starting at `progress`."""
        while True:
            rest = self.sampler.rest_of_epoch(self.progress.position)
            while planned := list(islice(rest, self.accumulate)):  # the last update of an epoch may have fewer batches
                batches = [self.batch(one.indices, index) for index, one in enumerate(planned)]
                self.sampler.corpus.release()
                update = self.update(batches)
                self.progress.position = planned[-1].next_position
                yield update

    def batch(self, indices: Indices, index: int) -> Batch:
        """Collate batch number `index` of the next update."""
        key = random_key(self.seed, self.progress.step + 1, index, BPE_DROPOUT_STREAM)
        return collate(self.sampler.corpus, indices, self.symbols, bpe_dropout=self.bpe_dropout, key=key)

    def update(self, batches: Sequence[Batch]) -> Update:
        """Take one optimizer step on the given batches."""
        step = self.progress.step + 1
        objective = self.objective_at(step)
        keys = [random_key(self.seed, step, index) for index in range(len(batches))]
        self.optimizer.zero_grad(set_to_none=True)
        loss = accumulate(
            self.model,
            objective,
            [batch.to(self.device) for batch in batches],
            keys=keys,
            group=self.group,
            autocast=self.autocast,
        )
        norm = scale_and_clip(self.model.parameters(), loss.count, self.clip_norm)
        if not math.isfinite(norm):
            raise NotFiniteError(f"the gradient is {norm}", [index for batch in batches for index in batch.indices])
        learning_rate = self.learning_rate(step)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate
        self.optimizer.step()
        source_tokens = sum(batch.source_tokens for batch in batches)
        target_tokens = sum(batch.target_tokens for batch in batches)
        self.progress.step = step
        self.progress.source_tokens += source_tokens
        self.progress.target_tokens += target_tokens
        return Update(
            step=step,
            loss=loss.total / loss.count,
            metrics={name: value / loss.count for name, value in loss.metrics.items()},
            gradient_norm=norm,
            learning_rate=learning_rate,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            passes=objective.passes,
        )


def make_loop(
    model: nn.Module,
    objective_at: ObjectiveSchedule,
    sampler: BatchSampler,
    training: TrainingConfig,
    *,
    learning_rate: Callable[[int], float],
    symbols: Symbols,
    device: torch.device,
    autocast: Autocast,
    group: Group = SINGLE_PROCESS,
    bpe_dropout: BpeDropout | None = None,
) -> Loop:
    """Build the loop of a run with a new optimizer; objective and learning rate are functions of the step."""
    return Loop(
        model,
        objective_at,
        make_optimizer(model, training),
        sampler,
        symbols=symbols,
        learning_rate=learning_rate,
        seed=training.seed,
        accumulate=training.accumulate,
        clip_norm=training.clip_norm,
        device=device,
        group=group,
        autocast=autocast,
        bpe_dropout=bpe_dropout,
    )
