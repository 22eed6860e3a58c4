"""Gradients of one update: accumulated over batches, over the threads of this machine, and over processes.

A loss is a sum and a count. The update divides once by the total count, so neither accumulation nor the number of
processes changes the result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from saccade.data.sampling.batches import Batch
from saccade.distributed.group import SINGLE_PROCESS, Group
from saccade.errors import SaccadeError
from saccade.ops.rng import own_generator
from saccade.parallel_map import parallel_map, worker_count
from saccade.training.compute_settings import Autocast
from saccade.training.objectives.objective import Objective


@dataclass(frozen=True)
class StepLoss:
    """Loss and metrics of one update, summed over its batches and all processes."""

    total: float
    count: float
    metrics: dict[str, float] = field(default_factory=dict)


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
