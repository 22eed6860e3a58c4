"""Linear layers: float32 or int8 weights, with kernels for a few rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from saccade.ops.arguments import address, require_same_dtype_and_device, require_shape, require_width
from saccade.ops.dispatch import runs_on_inference_kernel, runs_on_kernel
from saccade.ops.int8_linear import int8_copy, int8_linear
from saccade.ops.kernel_library import kernel

MAX_ROWS = 8
"""The maximum number of rows for which our kernel is faster than PyTorch's matrix product."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., D) · weight (E, D)^T + bias (E,)."""
    require_same_dtype_and_device("linear", x=x, weight=weight, bias=bias)
    require_shape("linear", "weight", weight, None, None)
    require_width("linear", "x", x, weight.size(1))
    if bias is not None:
        require_shape("linear", "bias", bias, weight.size(0))
    inference = runs_on_inference_kernel(x)
    quantized = int8_copy(weight) if inference else None
    if quantized is not None:
        out = int8_linear(x, quantized)
        return out if bias is None else out.add_(bias)
    rows = x.numel() // max(1, x.size(-1))
    if inference and 0 < rows <= MAX_ROWS and x.is_contiguous() and weight.is_contiguous():
        return linear_kernel(x, weight, bias, rows)
    return F.linear(x, weight, bias)


def linear_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """A linear layer of a few rows on the kernel."""
    out = x.new_empty(*x.shape[:-1], len(weight))
    bias = None if bias is None else bias.contiguous()
    kernel("linear", rows, x.size(-1), len(weight), *map(address, (x, weight, bias, out)))
    return out


def packed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (N, D) · weight (E, D)^T of packed sequences; the op that follows adds the bias."""
    require_same_dtype_and_device("packed_linear", x=x, weight=weight)
    require_shape("packed_linear", "weight", weight, None, None)
    require_shape("packed_linear", "x", x, None, weight.size(1))
    if torch.is_grad_enabled() and runs_on_kernel(x):
        return TransposedLinear.apply(x, weight)  # type: ignore[no-any-return,no-untyped-call]
    quantized = int8_copy(weight) if runs_on_inference_kernel(x) else None
    return x @ weight.t() if quantized is None else int8_linear(x, quantized)


class TransposedLinear(torch.autograd.Function):
    """x · weight^T with a transposed copy of the weight, which makes PyTorch's product faster for many rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """x (N, D), weight (E, D) to (N, E)."""
        ctx.save_for_backward(x, weight)
        return x @ weight.t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of x and weight."""
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x
