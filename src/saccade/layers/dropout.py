"""Dropout, cheap on the CPU."""

from __future__ import annotations

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
        return x * kept_and_scaled(x.shape, probability)
    return F.dropout(x, probability)


def kept_and_scaled(shape: torch.Size, probability: float) -> Tensor:
    """0 for an entry whose 16 random bits stand below the threshold, else the scale; four entries from 64 bits."""
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    dropped = round(probability * LEVELS)
    keep = words.view(torch.int16)[:count].view(shape) >= dropped - LEVELS // 2
    return keep.float().mul_(LEVELS / (LEVELS - dropped))
