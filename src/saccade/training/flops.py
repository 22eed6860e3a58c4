"""The papers' "training cost": floating-point operations of the model itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from saccade.data.batches import Batch
from saccade.training.objectives.objective import Objective

Shape = Sequence[int]


def recurrent_flops(inputs: Shape, weight: Shape, recurrent: Shape, *_: Any, **__: Any) -> int:
    """A fused recurrent layer over inputs (T, B, D): at each place a product with W (G·H, D) and one with U (G·H, H)."""
    places, rows, _width = inputs
    return 2 * places * rows * (weight[0] * weight[1] + recurrent[0] * recurrent[1])


def recurrent_backward_flops(*shapes: Any, **named: Any) -> int:
    """The gradients of the inputs and of the weights: each as many products as the way forward."""
    return 2 * recurrent_flops(*shapes, **named)


# The counter does not know the fused layer of the CPU.
RECURRENT = {
    torch.ops.aten.mkldnn_rnn_layer: recurrent_flops,
    torch.ops.aten.mkldnn_rnn_layer_backward: recurrent_backward_flops,
}


def flops_of_batch(model: nn.Module, objective: Objective, batch: Batch) -> int:
    """Operations of one forward and backward pass, counted from the matrix products that run (a product-sum is two).

    The attention runs on its explicit kernel for the count: the fused one hides its products from the counter.
    """
    with FlopCounterMode(display=False, custom_mapping=RECURRENT) as counter, sdpa_kernel(SDPBackend.MATH):
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
