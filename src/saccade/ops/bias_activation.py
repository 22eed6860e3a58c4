"""Bias and ReLU in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from saccade.ops.arguments import address, overwritable, require_same_dtype_and_device, require_shape
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.kernel_library import kernel


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """max(0, x + bias) for x (N, D); the kernel writes the result over x, which must not be used afterwards."""
    require_same_dtype_and_device("bias_relu", x=x, bias=bias)
    require_shape("bias_relu", "bias", bias, None)
    require_shape("bias_relu", "x", x, None, bias.numel())
    if runs_on_kernel(x):
        return BiasReluKernel.apply(overwritable(x), bias)  # type: ignore[no-any-return,no-untyped-call]
    return F.relu(x + bias)


class BiasReluKernel(torch.autograd.Function):
    """Bias and ReLU on the kernel, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        """x (N, D), bias (D,)."""
        bias = bias.contiguous()
        kernel("bias_relu", *x.shape, address(x), address(bias))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of x (N, D) and bias (D,)."""
        (out,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        x_grad, bias_grad = torch.empty_like(out), out.new_empty(out.size(1))
        kernel("bias_relu_backward", *out.shape, *map(address, (out, gradient, x_grad, bias_grad)))
        return x_grad, bias_grad
