"""Dropout, cheap on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 1 << 16  # a probability is rounded to this many levels


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero entries with a probability and scale the others so that the mean stays.

    The library's kernel draws a float an entry and is a fifth of a small model's training time on the CPU; 16 random
    bits an entry are enough. Random numbers come from torch's default generator, as everywhere.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return BitDropout.apply(x, probability)  # type: ignore[no-any-return,no-untyped-call]
    return F.dropout(x, probability)


class BitDropout(torch.autograd.Function):
    """Keeps the entries whose 16 random bits stand above a threshold."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        """Draw four entries at a time from 64 bits."""
        count = x.numel()
        words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        dropped = round(probability * LEVELS)
        keep = words.view(torch.int16)[:count].view(x.shape) >= dropped - LEVELS // 2
        ctx.scale = LEVELS / (LEVELS - dropped)
        ctx.save_for_backward(keep)
        return keep_and_scale(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The same entries, the same scale."""
        (keep,) = ctx.saved_tensors
        return keep_and_scale(gradient, keep, ctx.scale), None


def keep_and_scale(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x · keep · scale in one pass; the kernel is named for the backward pass but is just this product."""
    return torch.ops.aten.native_dropout_backward(x, keep, scale)  # type: ignore[no-any-return]
