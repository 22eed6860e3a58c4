"""Parts that the PyTorch references of attention share: heads and the masked softmax."""

from __future__ import annotations

import torch
from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·d) to (B, H, T, d)."""
    return x.reshape(*x.shape[:-1], heads, x.size(-1) // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) to (B, T, H·d)."""
    return x.transpose(1, 2).flatten(2)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of scores (..., S) over the positions where `mask` is True, 0 elsewhere and where no position is True."""
    if mask is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # NaN before this where the mask has no True
