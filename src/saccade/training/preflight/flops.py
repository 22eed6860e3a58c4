"""The papers' "training cost": floating-point operations of the model itself."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from saccade.csrc.library import without_kernels
from saccade.data.sampling.batches import Batch
from saccade.training.objectives.objective import Objective


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of all products that run while it is active, by the library's formulas.

    The library's own counter follows modules too, and fails where one of them is handed a parameter.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        packet = func._overloadpacket
        if packet not in COUNTED:
            with self:  # what is made of other operations is counted by those
                parts = func.decompose(*args, **named)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **named)
        if packet in COUNTED:
            self.total += int(COUNTED[packet](*args, **named, out_val=result))
        return result


def recurrent_flops(inputs: Tensor, weight: Tensor, recurrent: Tensor, *_: Any, **__: Any) -> int:
    """A fused recurrent layer over inputs (T, B, D): at each place a product with W (G·H, D), one with U (G·H, H)."""
    places, rows, _width = inputs.shape
    return 2 * places * rows * (weight.numel() + recurrent.numel())


def recurrent_backward_flops(*tensors: Any, **named: Any) -> int:
    """The gradients of the inputs and of the weights: each as many products as the way forward."""
    return 2 * recurrent_flops(*tensors, **named)


COUNTED = {
    **flop_registry,
    torch.ops.aten.mkldnn_rnn_layer: recurrent_flops,  # the library has no formula for the fused layer of the CPU
    torch.ops.aten.mkldnn_rnn_layer_backward: recurrent_backward_flops,
}


def flops_of_batch(model: nn.Module, objective: Objective, batch: Batch) -> int:
    """Operations of one forward and backward pass, counted from the matrix products that run (a product-sum is two).

    The attention and, on a GPU, recurrent layers run on their explicit kernels for the count: the fused ones, and ours,
    hide their products from it.
    """
    explicit = sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False), without_kernels()
    with contextlib.ExitStack() as stack, Operations() as operations:
        for choice in explicit:
            stack.enter_context(choice)
        objective.loss(model, batch).total.backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None
    return int(operations.total)


@dataclasses.dataclass(frozen=True)
class FlopRate:
    """Operations of one look at a target token, from one batch; real tokens only, so padding is no achievement."""

    per_token: float

    @classmethod
    def measure(cls, model: Any, objective: Objective, batch: Batch) -> FlopRate:
        """Count a batch and share the operations among its real tokens."""
        cells = batch.source.mask.numel() + batch.target_mask.numel()
        real = batch.source_tokens + batch.target_tokens
        tokens = objective.passes * max(1, batch.target_tokens)
        return cls(flops_of_batch(model, objective, batch) * (real / cells) / tokens)
