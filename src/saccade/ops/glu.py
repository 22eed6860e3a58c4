"""Gated linear units (Dauphin et al. 2017, section 3), with bias and residual sum in one pass; inference kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.arguments import address, require_same_dtype_and_device, require_shape, require_width
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.kernel_library import kernel
from saccade.ops.linear import linear


def linear_glu(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """(a∘σ(b) + residual) · scale with (a, b) = weight x + bias, for x (..., E), weight (2D, E), residual (..., D)."""
    op = "linear_glu"
    require_same_dtype_and_device(op, x=x, weight=weight, bias=bias, residual=residual)
    require_shape(op, "weight", weight, None, None)
    require_width(op, "x", x, weight.size(1))
    require_gates(op, bias, residual, x.shape[:-1], weight.size(0))
    if runs_on_inference_kernel(x):
        return bias_glu(linear(x, weight), bias, residual, scale)
    return scaled_sum(F.glu(linear(x, weight, bias)), residual, scale)


def bias_glu(x: Tensor, bias: Tensor, residual: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """(a∘σ(b) + residual) · scale with (a, b) = x + bias, for x (..., 2D), bias (2D,), residual (..., D)."""
    require_same_dtype_and_device("bias_glu", x=x, bias=bias, residual=residual)
    require_width("bias_glu", "x", x, bias.numel())
    require_gates("bias_glu", bias, residual, x.shape[:-1], x.size(-1))
    if runs_on_inference_kernel(x):
        return glu_kernel(x.contiguous(), bias.contiguous(), residual, scale)
    return scaled_sum(F.glu(x + bias), residual, scale)


def require_gates(op: str, bias: Tensor, residual: Tensor | None, shape: torch.Size, width: int) -> None:
    """Raise ValueError unless the gates (*shape, width) are two halves, and bias and residual have their shapes."""
    if width % 2 or not width:
        raise ValueError(f"{op}: gates of width {width} are not two halves")
    require_shape(op, "bias", bias, width)
    if residual is not None:
        require_shape(op, "residual", residual, *shape, width // 2)


def scaled_sum(gated: Tensor, residual: Tensor | None, scale: float) -> Tensor:
    """(gated + residual) · scale."""
    total = gated if residual is None else gated + residual
    return total if scale == 1.0 else total * scale


def glu_kernel(x: Tensor, bias: Tensor, residual: Tensor | None, scale: float) -> Tensor:
    """The gated linear unit on the kernel."""
    width = x.size(-1) // 2
    residual = None if residual is None else residual.contiguous()
    out = x.new_empty(*x.shape[:-1], width)
    kernel("glu", out.numel() // width, width, address(x), address(bias), address(residual), scale, address(out))
    return out
