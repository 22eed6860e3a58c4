"""The papers' "training cost": floating-point operations of the model itself."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from saccade.data.batches import Batch
from saccade.training.objectives.objective import Objective


def flops_of_batch(model: nn.Module, objective: Objective, batch: Batch) -> int:
    """Operations of one forward and backward pass, counted from the matrix products that run (a product-sum is two).

    The attention runs on its explicit kernel for the count: the fused one hides its products from the counter.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        objective.loss(model, batch).total.backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None
    return int(counter.get_total_flops())


@dataclasses.dataclass(frozen=True)
class FlopRate:
    """Operations a target token, measured on one batch; counts real tokens only, so padding is no achievement."""

    per_token: float

    @classmethod
    def measure(cls, model: Any, objective: Objective, batch: Batch) -> FlopRate:
        """Count a batch and share the operations among its real tokens."""
        cells = batch.source.mask.numel() + batch.target_mask.numel()
        real = batch.source_tokens + batch.target_tokens
        return cls(flops_of_batch(model, objective, batch) * (real / cells) / max(1, batch.target_tokens))
