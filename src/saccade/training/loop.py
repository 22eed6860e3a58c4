"""The training loop for every model and every objective.

Random numbers and data order are functions of (seed, step, batch index within the step) or (seed, epoch, index). So a
resumed run repeats the uninterrupted one, and neither gradient accumulation nor the number of processes changes the
result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import Batch, Indices, collate
from saccade.data.tokenizers.bpe_dropout import BpeDropout
from saccade.distributed.group import SINGLE_PROCESS, Group
from saccade.errors import SaccadeError
from saccade.ops.rng import own_generator
from saccade.parallel_map import parallel_map, worker_count
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast
from saccade.training.config import TrainingConfig
from saccade.training.objectives.objective import Objective, ObjectiveSchedule
from saccade.training.optimizers import make_optimizer, scale_and_clip

BPE_DROPOUT_STREAM = 1  # separates the random keys of BPE dropout from those of the model's dropout


@dataclass
class Progress:
    """Progress of a run: plain data, saved in every checkpoint."""

    step: int = 0
    place: EpochPosition = field(default_factory=EpochPosition)  # position of the next batch in the data
    seconds: float = 0.0  # spent in training and validation; the only field that depends on the clock
    source_tokens: int = 0
    target_tokens: int = 0
    flops: float = 0.0
    best: float | None = None  # best value of the criterion so far
    best_step: int = 0
    stale: int = 0  # validations since the best one
    recent: list[dict[str, float]] = field(default_factory=list)  # losses since the last log line


@dataclass(frozen=True)
class StepLoss:
    """Loss and metrics of one update, summed over its batches and all processes."""

    total: float
    count: float
    metrics: dict[str, float] = field(default_factory=dict)


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


class NotFiniteError(SaccadeError):
    """A loss or gradient is infinite or NaN; names the examples of the batch."""

    def __init__(self, what: str, examples: Sequence[int]) -> None:
        super().__init__(what, where=f"examples {name_examples(examples)}")
        self.examples = examples


def random_key(seed: int, *position: int) -> int:
    """Derive the random seed of one position in a run (step, batch index, ...); positions get independent seeds."""
    low, high = np.random.SeedSequence((seed, *position)).generate_state(2, np.uint32)
    return int(high) << 31 | int(low) >> 1


def accumulate(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[Batch],
    *,
    keys: Sequence[int],
    group: Group = SINGLE_PROCESS,
    autocast: Autocast = contextlib.nullcontext,
) -> StepLoss:
    """Accumulate in `.grad` the gradient of the summed loss of all batches; rank r takes batches r, r + size, …"""
    total, count = 0.0, 0.0
    error: NotFiniteError | None = None
    metrics = dict.fromkeys(objective.metrics, 0.0)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for batch, key in list(zip(batches, keys, strict=True))[group.rank :: group.size]:
        torch.manual_seed(key)
        for part in loss_and_gradients(model, objective, batch, parameters, key, autocast):
            if not math.isfinite(part.value):
                error = error or NotFiniteError(f"the loss is {part.value}", part.batch.indices)
            add_gradients(parameters, part.gradients)
            total += part.value
            count += part.count
            for name, value in part.metrics.items():
                metrics[name] += value
        if error:
            break
    errors, total, count, *sums = group.all_reduce_numbers([float(error is not None), total, count, *metrics.values()])
    if errors:  # all processes must stop together: the others would wait forever in the next all-reduce
        raise error or NotFiniteError("the loss of another process is not finite", ())
    if group.size > 1:
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        group.all_reduce_([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    metrics = dict(zip(metrics, sums, strict=True))
    return StepLoss(total, count, metrics)


@dataclass(frozen=True)
class LossAndGradients:
    """Summed loss and gradients of a batch or of a part of one."""

    batch: Batch
    value: float
    count: int
    metrics: Mapping[str, float]
    gradients: Sequence[Tensor | None]


def loss_and_gradients(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    parameters: Sequence[nn.Parameter],
    key: int,
    autocast: Autocast,
) -> list[LossAndGradients]:
    """Compute loss and gradients of a batch; on a CPU its parts run in parallel, each with its own threads and rng."""

    def compute(part: Batch) -> LossAndGradients:
        with autocast():
            loss = objective.loss(model, part)
        value = float(loss.total.detach())
        gradients: Sequence[Tensor | None] = (None,) * len(parameters)
        if math.isfinite(value):
            gradients = torch.autograd.grad(loss.total, parameters, allow_unused=True)
        return LossAndGradients(part, value, loss.count, loss.metrics, gradients)

    def compute_part(numbered: tuple[int, Batch]) -> LossAndGradients:
        number, part = numbered
        with own_generator(random_key(key, number)):
            return compute(part)

    with autocast():  # autocast is thread-local: worker_count checks it
        tokens = objective.passes * batch.target.numel()
        workers = worker_count(tokens, batch.target.device) if objective.separable else 1
    parts = batch.split(workers) if workers > 1 else [batch]
    if len(parts) == 1:
        return [compute(batch)]
    return parallel_map(compute_part, list(enumerate(parts)), workers)


def add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients to `.grad`; shared or non-contiguous tensors are cloned, because `.grad` is modified in place."""
    used: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        elif gradient.data_ptr() in used or not gradient.is_contiguous():
            parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
        else:
            parameter.grad = gradient
        used.add(gradient.data_ptr())


def name_examples(indices: Sequence[int]) -> str:
    """List at most eight example indices for an error message."""
    shown = ", ".join(str(index) for index in indices[:8])
    return shown if len(indices) <= 8 else f"{shown} and {len(indices) - 8} more"


class Loop:
    """Iterates over the data and updates the model; the caller validates and saves between updates."""

    def __init__(
        self,
        model: nn.Module,
        objective_at: ObjectiveSchedule,
        optimizer: torch.optim.Optimizer,
        order: BatchSampler,
        *,
        symbols: Symbols,
        rate: Callable[[int], float],
        seed: int,
        accumulate: int = 1,
        clip_norm: float = 0.0,
        device: torch.device | str = "cpu",
        group: Group = SINGLE_PROCESS,
        autocast: Autocast = contextlib.nullcontext,
        progress: Progress | None = None,
        splitting: BpeDropout | None = None,
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
        """Yield updates without end, epoch after epoch, starting at `progress`."""
        while True:
            rest = self.order.rest_of_epoch(self.progress.place)
            while planned := list(islice(rest, self.accumulate)):  # the last update of an epoch may have fewer batches
                batches = [self.batch(one.indices, index) for index, one in enumerate(planned)]
                self.order.corpus.release()
                update = self.update(batches)
                self.progress.place = planned[-1].next_position
                yield update

    def batch(self, rows: Indices, index: int) -> Batch:
        """Collate batch number `index` of the next update."""
        key = random_key(self.seed, self.progress.step + 1, index, BPE_DROPOUT_STREAM)
        return collate(self.order.corpus, rows, self.symbols, bpe_dropout=self.splitting, key=key)

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


def make_loop(
    model: nn.Module,
    objective_at: ObjectiveSchedule,
    order: BatchSampler,
    training: TrainingConfig,
    *,
    rate: Callable[[int], float],
    symbols: Symbols,
    device: torch.device,
    autocast: Autocast,
    group: Group = SINGLE_PROCESS,
    splitting: BpeDropout | None = None,
) -> Loop:
    """Build the loop of a run with a new optimizer; objective and learning rate are functions of the step."""
    return Loop(
        model,
        objective_at,
        make_optimizer(model, training),
        order,
        symbols=symbols,
        rate=rate,
        seed=training.seed,
        accumulate=training.accumulate,
        clip_norm=training.clip_norm,
        device=device,
        group=group,
        autocast=autocast,
        splitting=splitting,
    )
