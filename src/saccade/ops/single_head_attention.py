"""Single-head attention of recurrent and convolutional decoders: scores, softmax and weighted sum over the memory."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from saccade.ops.arguments import address, require_mask, require_same_dtype_and_device, require_shape
from saccade.ops.attention_reference import masked_softmax
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.kernel_library import kernel

MAX_QUERIES = 8
"""The maximum number of queries per sentence for which the kernel is faster than two batched matrix products."""


class SingleHeadAttention(NamedTuple):
    """Contexts and attention weights of W queries per sentence."""

    context: Tensor  # (B, W, d)
    weights: Tensor  # (B, W, S)


def single_head_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, vector: Tensor | None = None
) -> SingleHeadAttention:
    """Attention of queries (B, W, a) to keys (B, S, a) and values (B, S, d) where mask (B, S) is True.

    With a `vector` (a,) the scores are additive, v·tanh(q + k) (Bahdanau et al. 2015), else dot products q·k.
    """
    op = "single_head_attention"
    require_same_dtype_and_device(op, query=query, keys=keys, values=values, vector=vector)
    require_shape(op, "query", query, None, None, None)
    batch, queries, width = query.shape
    require_shape(op, "keys", keys, batch, None, width)
    require_shape(op, "values", values, batch, keys.size(1), None)
    require_mask(op, mask, batch, keys.size(1), device=query.device)
    if vector is not None:
        require_shape(op, "vector", vector, width)
    if queries <= MAX_QUERIES and runs_on_inference_kernel(query):
        return attention_kernel(query, keys, values, mask, vector)
    if vector is None:
        scores = query @ keys.transpose(-1, -2)  # (B, W, S)
    else:
        scores = (query.unsqueeze(-2) + keys.unsqueeze(-3)).tanh_() @ vector
    weights = masked_softmax(scores, mask[:, None])
    return SingleHeadAttention(weights @ values, weights)


def attention_kernel(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, vector: Tensor | None
) -> SingleHeadAttention:
    """Single-head attention on the kernel; mask: True = real position."""
    (batch, queries, width), (positions, depth) = query.shape, values.shape[1:]
    context, weights = query.new_empty(batch, queries, depth), query.new_empty(batch, queries, positions)
    inputs = [None if x is None else x.contiguous() for x in (mask, query, keys, vector, values)]
    sizes = batch * queries, queries, positions, width, depth
    kernel("single_head_attention", *sizes, *map(address, inputs), address(context), address(weights))
    return SingleHeadAttention(context, weights)
