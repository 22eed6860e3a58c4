"""Gated linear units after a product: Dauphin et al. 2017, section 3."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from saccade.csrc.library import expect, for_inference, kernel
from saccade.layers.products import product


def gated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (…, D) by weight (2E, D) and bias (2E,) to (a, b), and that to a∘σ(b) (…, E)."""
    return gate(product(x, weight), bias) if for_inference(x) else F.glu(product(x, weight, bias))


def gated_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, factor: float) -> Tensor:
    """(a∘σ(b) + residual) · factor, residual (…, E)."""
    if for_inference(x):
        return gate_residual(product(x, weight), bias, residual, factor)
    return (F.glu(product(x, weight, bias)) + residual) * factor


def gate(both: Tensor, bias: Tensor) -> Tensor:
    """(…, 2E) without its bias (2E,) to a∘σ(b) (…, E)."""
    return on_the_kernel(both, bias, None, 1.0) if for_inference(both) else F.glu(both + bias)


def gate_residual(both: Tensor, bias: Tensor, residual: Tensor, factor: float) -> Tensor:
    """(a∘σ(b) + residual) · factor of (…, 2E) without its bias."""
    if for_inference(both):
        return on_the_kernel(both, bias, expect(residual, *both.shape[:-1], both.size(-1) // 2), factor)
    return (F.glu(both + bias) + residual) * factor


def on_the_kernel(both: Tensor, bias: Tensor, residual: Tensor | None, factor: float) -> Tensor:
    """All that comes after the product, in one pass."""
    both, width = both.contiguous(), both.size(-1) // 2
    out = both.new_empty(*both.shape[:-1], width)
    other = None if residual is None else residual.data_ptr()
    kernel("glu", out.numel() // width, width, both.data_ptr(), bias.data_ptr(), other, factor, out.data_ptr())
    return out
