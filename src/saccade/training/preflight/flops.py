"""Training cost as papers report it: floating-point operations of the model."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from saccade.data.sampling.batches import Batch
from saccade.ops.dispatch import without_kernels
from saccade.training.objectives.objective import Objective


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of all operations that run while it is active, by torch's formulas.

    torch's FlopCounterMode also hooks modules, and fails if a module is called with a parameter.
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
            with self:  # a composite operation is counted by its parts
                parts = func.decompose(*args, **named)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **named)
        if packet in COUNTED:
            self.total += int(COUNTED[packet](*args, **named, out_val=result))
        return result


def recurrent_flops(inputs: Tensor, weight: Tensor, recurrent: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a fused recurrent layer over inputs (T, B, D) with W (G·H, D) and U (G·H, H)."""
    steps, rows, _width = inputs.shape
    return 2 * steps * rows * (weight.numel() + recurrent.numel())


def recurrent_backward_flops(*tensors: Any, **named: Any) -> int:
    """Return the FLOPs of the backward pass: the gradients of inputs and of weights cost one forward pass each."""
    return 2 * recurrent_flops(*tensors, **named)


COUNTED = {
    **flop_registry,
    torch.ops.aten.mkldnn_rnn_layer: recurrent_flops,  # torch has no formula for the fused CPU layer
    torch.ops.aten.mkldnn_rnn_layer_backward: recurrent_backward_flops,
}


def flops_of_batch(model: nn.Module, objective: Objective, batch: Batch) -> int:
    """Count the FLOPs of one forward and backward pass from its matrix products (a multiply-add is two).

    Attention and, on a GPU, recurrent layers run unfused for the count: fused kernels hide their products.
    """
    explicit = sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False), without_kernels()
    with contextlib.ExitStack() as stack, FlopCounter() as counter:
        for choice in explicit:
            stack.enter_context(choice)
        objective.loss(model, batch).total.backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None
    return int(counter.total)


@dataclasses.dataclass(frozen=True)
class FlopRate:
    """FLOPs per target token and forward pass, measured on one batch; padding is not counted."""

    per_token: float

    @classmethod
    def measure(cls, model: Any, objective: Objective, batch: Batch) -> FlopRate:
        """Count the FLOPs of a batch and divide them by its real tokens."""
        cells = batch.source.mask.numel() + batch.target_mask.numel()
        real = batch.source_tokens + batch.target_tokens
        tokens = objective.passes * max(1, batch.target_tokens)
        return cls(flops_of_batch(model, objective, batch) * (real / cells) / tokens)
