"""Masks: True at a real position, or where a query may attend."""

from __future__ import annotations

import torch
from torch import Tensor


def padding_mask(lengths: Tensor, width: int | None = None) -> Tensor:
    """(B, S), True at the first `lengths[b]` positions of sequence b."""
    size = max(lengths.tolist(), default=0) if width is None else width
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """(T, S): query t attends to keys up to its own position; fewer queries than keys are the last ones."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def window_mask(queries: int, keys: int, radius: int, device: torch.device | None = None) -> Tensor:
    """(T, S): query t attends to keys at most `radius` positions away (Vaswani et al. 2017, section 4)."""
    positions = torch.arange(keys - queries, keys, device=device)[:, None]
    return (positions - torch.arange(keys, device=device)).abs() <= radius
