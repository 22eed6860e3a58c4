"""Dropout, cheap on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from saccade.csrc.library import kernel, usable
from saccade.layers.rng import draw_seed

LEVELS = 1 << 16  # a probability is rounded to this many levels


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero entries with a probability and scale the others so that the mean stays.

    The library's kernel draws a float an entry and is a fifth of a small model's training time on the CPU; 16 random
    bits an entry are enough.
    """
    if not training or probability == 0.0:
        return x
    if usable(x):
        return Dropout.apply(x, probability)  # type: ignore[no-any-return,no-untyped-call]
    if x.device.type == "cpu":
        return x * kept_and_scaled(x.shape, probability).to(x.dtype)
    return F.dropout(x, probability)


class Dropout(torch.autograd.Function):
    """On the kernel: the way back draws the same bits again instead of keeping a mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        """x of any shape."""
        ctx.chance = levels_of(probability), draw_seed()
        return dropped(x, *ctx.chance)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The entries that were dropped have none."""
        return dropped(gradient, *ctx.chance), None


def dropped(x: Tensor, levels: int, seed: int) -> Tensor:
    """x with the entries at 0 that a seed drops, the others scaled."""
    x = x.contiguous()
    out = torch.empty_like(x)
    kernel("dropout", x.numel(), x.data_ptr(), out.data_ptr(), levels, seed)
    return out


def levels_of(probability: float) -> int:
    """A probability as a whole number of levels."""
    return round(probability * LEVELS)


def kept_and_scaled(shape: torch.Size, probability: float) -> Tensor:
    """0 for an entry whose 16 random bits stand below the threshold, else the scale; four entries from 64 bits."""
    count = shape.numel()
    words = np.random.SFC64(draw_seed()).random_raw((count + 3) // 4)
    dropped = levels_of(probability)
    keep = torch.from_numpy(words.view(np.int16))[:count].view(shape) >= dropped - LEVELS // 2
    return keep.float().mul_(LEVELS / (LEVELS - dropped))
