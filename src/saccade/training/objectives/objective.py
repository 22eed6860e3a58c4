"""The interface between the training loop and an objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from saccade.data.sampling.batches import Batch


@dataclass(frozen=True)
class Loss:
    """Loss summed over a batch, and the number of summands; the loop divides by the count of the update."""

    total: Tensor  # scalar with gradient
    count: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # sums over the batch, divided by `count`


class Objective(Protocol):
    """A loss function of a model and a batch."""

    metrics: tuple[str, ...]  # names of the metrics of every loss
    separable: bool  # the loss of a batch is the sum of the losses of its parts, which may run in parallel threads
    passes: int  # forward passes per example

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Compute the loss of a batch."""
        ...


ObjectiveSchedule = Callable[[int], Objective]
"""Function from the number of an update, counted from 1, to its objective."""
