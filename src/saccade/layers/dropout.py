"""Dropout, cheap on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 1 << 16  # a probability is rounded to this many levels


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero entries with a probability and scale the others so that the mean stays.

    The library's kernel draws a float an entry and is a fifth of a small model's training time on the CPU; 16 random
    bits an entry are enough.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return x * kept_and_scaled(x.shape, probability)
    return F.dropout(x, probability)


def kept_and_scaled(shape: torch.Size, probability: float) -> Tensor:
    """0 for an entry whose 16 random bits stand below the threshold, else the scale; four entries from 64 bits.

    The bits come from a fast generator whose seed torch's default generator draws, so that seeding torch is enough.
    """
    count = shape.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.SFC64(seed).random_raw((count + 3) // 4)
    dropped = round(probability * LEVELS)
    keep = torch.from_numpy(words.view(np.int16))[:count].view(shape) >= dropped - LEVELS // 2
    return keep.float().mul_(LEVELS / (LEVELS - dropped))
