"""Masks: True where a query may look."""

from __future__ import annotations

import torch
from torch import Tensor


def padding_mask(lengths: Tensor, width: int | None = None) -> Tensor:
    """(B, S) with `lengths[b]` leading True."""
    size = int(lengths.max()) if width is None else width
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """(T, S): query t sees keys up to its own place; with fewer queries than keys, the queries are the last ones."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def window_mask(queries: int, keys: int, radius: int, device: torch.device | None = None) -> Tensor:
    """(T, S): query t sees keys at most `radius` places away (Vaswani et al. 2017, section 4, restricted attention)."""
    places = torch.arange(keys - queries, keys, device=device)[:, None]
    return (places - torch.arange(keys, device=device)).abs() <= radius
