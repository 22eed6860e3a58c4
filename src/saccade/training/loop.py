"""The one loop: batches in, updates out, for every model and every objective.

Everything random or ordered is a function of (seed, step, place in the step) or (seed, epoch, index): a run that starts
again from a checkpoint goes the same way, and neither accumulation nor the number of processes changes the result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saccade.data.sampling.batch_sampler import Order, Place
from saccade.data.sampling.batches import Batch, Indices, collate
from saccade.data.tokenizers.bpe_dropout import Splitting
from saccade.distributed.group import ALONE, Group
from saccade.errors import SaccadeError
from saccade.layers.rng import own_generator
from saccade.parallel_map import side_by_side, workers_for
from saccade.symbols import Symbols
from saccade.training.objectives.objective import Objective, ObjectiveAt
from saccade.training.optimizers import scale_and_clip

SPLITS = 1  # keeps the keys of split tokens apart from those of dropout


@dataclass
class Progress:
    """Where a run stands; plain data that a checkpoint keeps."""

    step: int = 0
    place: Place = field(default_factory=Place)  # of the next batch
    seconds: float = 0.0  # spent in training and validation; the one thing here that depends on the clock
    source_tokens: int = 0
    target_tokens: int = 0
    flops: float = 0.0
    best: float | None = None  # the best criterion so far
    best_step: int = 0
    stale: int = 0  # validations since then
    recent: list[dict[str, float]] = field(default_factory=list)  # losses since the last line of the log


@dataclass(frozen=True)
class StepLoss:
    """The sums of one update over all its batches and all processes."""

    total: float
    count: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What one update was like; losses are means over the objective's count."""

    step: int
    loss: float
    metrics: dict[str, float]
    gradient_norm: float
    learning_rate: float
    source_tokens: int
    target_tokens: int
    passes: int  # how often each of them was seen


class NotFiniteError(SaccadeError):
    """A loss or a gradient that is infinite or not a number, and the examples it came from."""

    def __init__(self, what: str, examples: Sequence[int]) -> None:
        super().__init__(what, where=f"examples {name_examples(examples)}")
        self.examples = examples


def random_key(seed: int, *place: int) -> int:
    """A seed for this place of a run, unlike that of any other place."""
    low, high = np.random.SeedSequence((seed, *place)).generate_state(2, np.uint32)
    return int(high) << 31 | int(low) >> 1


def accumulate(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[Batch],
    *,
    keys: Sequence[int],
    group: Group = ALONE,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> StepLoss:
    """Leave in `.grad` the gradient of the summed loss of all batches; process r takes batches r, r + size, …"""
    total, count = 0.0, 0.0
    fault: NotFiniteError | None = None
    metrics = dict.fromkeys(objective.metrics, 0.0)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for batch, key in list(zip(batches, keys, strict=True))[group.rank :: group.size]:
        torch.manual_seed(key)
        for part in worth(model, objective, batch, parameters, key, autocast):
            if not math.isfinite(part.value):
                fault = fault or NotFiniteError(f"the loss is {part.value}", part.batch.indices)
            add_gradients(parameters, part.gradients)
            total += part.value
            count += part.count
            for name, value in part.metrics.items():
                metrics[name] += value
        if fault:
            break
    faults, total, count, *sums = group.totals([float(fault is not None), total, count, *metrics.values()])
    if faults:  # all processes stop together, or the others would wait for this one
        raise fault or NotFiniteError("the loss of another process is not finite", ())
    if group.size > 1:
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        group.sum_([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    metrics = dict(zip(metrics, sums, strict=True))
    return StepLoss(total, count, metrics)


@dataclass(frozen=True)
class Worth:
    """A batch, or a part of one, with its loss and the gradient of that."""

    batch: Batch
    value: float
    count: int
    metrics: Mapping[str, float]
    gradients: Sequence[Tensor | None]


def worth(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    parameters: Sequence[nn.Parameter],
    key: int,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]],
) -> list[Worth]:
    """What a batch is worth; on a CPU in parts, side by side, each with cores and random numbers of its own."""

    def worth_of(part: Batch) -> Worth:
        with autocast():
            loss = objective.loss(model, part)
        value = float(loss.total.detach())
        wanted = math.isfinite(value)
        found = torch.autograd.grad(loss.total, parameters, allow_unused=True) if wanted else (None,) * len(parameters)
        return Worth(part, value, loss.count, loss.metrics, found)

    def part_of(numbered: tuple[int, Batch]) -> Worth:
        number, part = numbered
        with own_generator(random_key(key, number)):
            return worth_of(part)

    with autocast():  # which is one thread's
        tokens = objective.passes * batch.target.numel()
        workers = workers_for(tokens, batch.target.device) if objective.separable else 1
    parts = batch.split(workers) if workers > 1 else [batch]
    if len(parts) == 1:
        return [worth_of(batch)]
    return side_by_side(part_of, list(enumerate(parts)), workers)


def add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add to what `.grad` holds already; each has memory of its own, since it will be written over."""
    taken: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        elif gradient.data_ptr() in taken or not gradient.is_contiguous():
            parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
        else:
            parameter.grad = gradient
        taken.add(gradient.data_ptr())


def name_examples(indices: Sequence[int]) -> str:
    """A batch named by its examples, shortened."""
    shown = ", ".join(str(index) for index in indices[:8])
    return shown if len(indices) <= 8 else f"{shown} and {len(indices) - 8} more"


class Loop:
    """Goes through the data and updates the model; whoever iterates decides what happens between updates."""

    def __init__(
        self,
        model: nn.Module,
        objective_at: ObjectiveAt,
        optimizer: torch.optim.Optimizer,
        order: Order,
        *,
        symbols: Symbols,
        rate: Callable[[int], float],
        seed: int,
        accumulate: int = 1,
        clip_norm: float = 0.0,
        device: torch.device | str = "cpu",
        group: Group = ALONE,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        progress: Progress | None = None,
        splitting: Splitting | None = None,
    ) -> None:
        self.model = model
        self.objective_at = objective_at
        self.optimizer = optimizer
        self.order = order
        self.symbols = symbols
        self.rate = rate
        self.seed = seed
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.device = torch.device(device)
        self.group = group
        self.autocast = autocast
        self.progress = progress or Progress()
        self.splitting = splitting

    def updates(self) -> Iterator[Update]:
        """Update after update, epoch after epoch, from where `progress` stands; without end."""
        while True:
            rest = self.order.rest_of_epoch(self.progress.place)
            while planned := list(islice(rest, self.accumulate)):  # the last update of an epoch may have fewer batches
                batches = [self.batch(one.rows, place) for place, one in enumerate(planned)]
                self.order.corpus.release()
                update = self.update(batches)
                self.progress.place = planned[-1].following
                yield update

    def batch(self, rows: Indices, place: int) -> Batch:
        """The batch at some place of the next update."""
        key = random_key(self.seed, self.progress.step + 1, place, SPLITS)
        return collate(self.order.corpus, rows, self.symbols, splitting=self.splitting, key=key)

    def update(self, batches: Sequence[Batch]) -> Update:
        """One step of the optimizer on some batches."""
        step = self.progress.step + 1
        objective = self.objective_at(step)
        keys = [random_key(self.seed, step, place) for place in range(len(batches))]
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
        rate = self.rate(step)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
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
            learning_rate=rate,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            passes=objective.passes,
        )
