"""Attention as free functions: a score, a softmax over a masked set, a weighted sum, and one `attend` for all models.

The families of scores (query q, key k):
    dot          q·k                          Luong et al. 2015, 3.1, "dot"
    scaled dot   q·k / sqrt(d_k)              Vaswani et al. 2017, eq. 1
    additive     v·tanh(W q + U k)            Bahdanau et al. 2015, appendix A.1.2
    bilinear     q W k                        Luong et al. 2015, 3.1, "general"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.layers.masks import causal_mask
from saccade.ops.dropout import dropout as drop

Score = Callable[[Tensor, Tensor], Tensor]


class Attended(NamedTuple):
    """What a query took from the values, and where it looked if that was asked for."""

    context: Tensor  # (..., T, d_v)
    weights: Tensor | None  # (..., T, S)


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """(..., T, d) and (..., S, d) to (..., T, S); the variance of an entry grows with d."""
    return query @ key.transpose(-1, -2)


def scaled_dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """Dot scores over sqrt(d), so that their variance is 1 for unit-variance queries and keys."""
    return dot_scores(query, key) / math.sqrt(query.size(-1))


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """The MLP of Bahdanau et al. on already projected queries and keys of width a; `vector` is (a,)."""
    return (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_() @ vector  # (..., T, S)


def bilinear_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """q W k with `weight` (d_q, d_k)."""
    return dot_scores(query @ weight, key)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the positions where `mask` is True; exactly 0 elsewhere, and all 0 where a row has no position."""
    if mask is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # a row without any position is NaN until here


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """(..., T, S) and (..., S, d_v) to the expectation of the values, (..., T, d_v)."""
    return weights @ values


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    score: Score = scaled_dot_scores,
    causal: bool = False,
    dropout: float = 0.0,
    record: bool = False,
) -> Attended:
    """Attend from queries (..., T, d) to keys (..., S, d) and values (..., S, d_v).

    `mask` is True where a query may look, and broadcasts to (..., T, S); `causal` hides the keys after the query's own
    place. Scaled dot scores without a record run on the fused kernel; all else runs on the explicit path.
    """
    # The fused kernel's triangle starts at the first key, ours ends at the last.
    square = query.size(-2) == key.size(-2)
    if causal and (record or mask is not None or score is not scaled_dot_scores or not square):
        triangle = causal_mask(query.size(-2), key.size(-2), query.device)
        mask, causal = (triangle if mask is None else mask & triangle), False
    fused = score is scaled_dot_scores and not record
    if fused and not (dropout and query.device.type == "cpu"):  # with dropout there is no fused kernel on the CPU
        context = F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal)
        return Attended(context, None)
    weights = masked_softmax(score(query, key), mask)
    return Attended(weighted_sum(drop(weights, dropout, training=True), value), weights)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H·d) to (B, H, T, d)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) to (B, T, H·d)."""
    return x.transpose(1, 2).flatten(2)


def side_by_side(x: Tensor, rows: int) -> Tensor:
    """(B·W, d), the W hypotheses of one sentence together, to (B, W, d): W queries for the keys of each sentence."""
    return x.view(rows, -1, x.size(-1))


def apart(weights: Tensor) -> Tensor:
    """Weights (B, H, W, S) of W hypotheses side by side to one query each: (B·W, H, 1, S)."""
    return weights.transpose(1, 2).flatten(0, 1).unsqueeze(2)
