"""The contract between the loop and what it minimises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from saccade.data.sampling.batches import Batch


@dataclass(frozen=True)
class Loss:
    """A sum over a batch and the number of things summed; the loop divides by the count of the whole step."""

    total: Tensor  # a scalar that a gradient flows from
    count: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # sums over the batch, averaged by the same count


class Objective(Protocol):
    """One file each under objectives/."""

    metrics: tuple[str, ...]  # the names of the sums that every loss reports
    separable: bool  # whether the loss of a batch is the sum of the losses of its parts, and threads may share them
    passes: int  # how often the model sees each example

    def loss(self, model: Any, batch: Batch) -> Loss:
        """What this batch is worth to this model."""
        ...


ObjectiveAt = Callable[[int], Objective]
"""What counts in an update, by its number: the first is 1."""
