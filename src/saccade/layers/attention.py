"""Attention as free functions: a score, a softmax over a masked set, a weighted sum, and one `attend` for all models.

Score functions (query q, key k):
    dot          q·k                          Luong et al. 2015, 3.1, "dot"
    scaled dot   q·k / sqrt(d_k)              Vaswani et al. 2017, eq. 1
    additive     v·tanh(W q + U k)            Bahdanau et al. 2015, appendix A.1.2
    bilinear     q W k                        Luong et al. 2015, 3.1, "general"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from saccade.layers.masks import causal_mask
from saccade.ops.attention_reference import masked_softmax
from saccade.ops.dropout import dropout as apply_dropout

Score = Callable[[Tensor, Tensor], Tensor]


class Attended(NamedTuple):
    """Contexts of queries and, from the explicit path, the attention weights."""

    context: Tensor  # (..., T, d_v)
    weights: Tensor | None  # (..., T, S); None from the fused kernel


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q·k: (..., T, d) and (..., S, d) to (..., T, S); the variance of a score grows with d."""
    return query @ key.transpose(-1, -2)


def scaled_dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q·k / sqrt(d): scores of unit variance for queries and keys of unit variance."""
    return dot_scores(query, key) / math.sqrt(query.size(-1))


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """v·tanh(q + k) of projected queries (..., T, a) and keys (..., S, a); `vector` is (a,)."""
    return (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_() @ vector  # (..., T, S)


def bilinear_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """q W k with `weight` (d_q, d_k)."""
    return dot_scores(query @ weight, key)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Weights (..., T, S) and values (..., S, d_v) to contexts (..., T, d_v)."""
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

    `mask` is True where a query may attend and broadcasts to (..., T, S). `causal` masks the keys after the query's
    position. Scaled dot scores without `record` run on PyTorch's fused kernel; everything else takes the explicit
    path.
    """
    # The fused kernel aligns the causal triangle with the first key, we align it with the last.
    square = query.size(-2) == key.size(-2)
    if causal and (record or mask is not None or score is not scaled_dot_scores or not square):
        triangle = causal_mask(query.size(-2), key.size(-2), query.device)
        mask, causal = (triangle if mask is None else mask & triangle), False
    fused = score is scaled_dot_scores and not record
    if fused and not (dropout and query.device.type == "cpu"):  # the CPU has no fused kernel with dropout
        context = F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal)
        return Attended(context, None)
    weights = masked_softmax(score(query, key), mask)
    return Attended(weighted_sum(apply_dropout(weights, dropout, training=True), value), weights)


def group_by_sentence(x: Tensor, sentences: int) -> Tensor:
    """(B·W, d), the W hypotheses of a sentence in consecutive rows, to (B, W, d): W queries per sentence."""
    return x.view(sentences, x.size(0) // max(1, sentences), x.size(-1))


def split_hypotheses(weights: Tensor) -> Tensor:
    """Attention weights (B, H, W, S) of W hypotheses per sentence to one row per hypothesis, (B·W, H, 1, S)."""
    return weights.transpose(1, 2).flatten(0, 1).unsqueeze(2)
