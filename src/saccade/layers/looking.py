"""Where the queries of a recurrent or convolutional decoder look, one head over the memory."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from saccade.csrc.library import expect, for_inference, kernel
from saccade.layers.attention import additive_scores, dot_scores, masked_softmax, weighted_sum

FEW = 8
"""Up to so many queries a sentence the kernel is faster than two products of matrices."""


class Look(NamedTuple):
    """What the queries took, and from where."""

    context: Tensor  # (B, W, d)
    weights: Tensor  # (B, W, S)


def look(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, vector: Tensor | None = None) -> Look:
    """Queries (B, W, a) to keys (B, S, a) and values (B, S, d), at places where the mask (B, S) is True.

    With a `vector` (a,) the scores are additive, v·tanh(q + k), else q·k.
    """
    if query.size(1) <= FEW and for_inference(query):
        return look_on_the_kernel(query, keys, values, mask, vector)
    scores = dot_scores(query, keys) if vector is None else additive_scores(query, keys, vector)
    weights = masked_softmax(scores, mask[:, None])
    return Look(weighted_sum(weights, values), weights)


def look_on_the_kernel(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, vector: Tensor | None) -> Look:
    """Scores, softmax and sum in one pass over the memory."""
    batch, beam, width = query.shape
    places, depth = values.shape[1:]
    if mask.shape != (batch, places):
        raise ValueError(f"a mask {tuple(mask.shape)} for {batch} memories of {places} places")
    query, keys, mask = expect(query, batch, beam, width), expect(keys, batch, places, width), mask.contiguous()
    values, vector = expect(values, batch, places, depth), None if vector is None else expect(vector, width)
    context, weights = query.new_empty(batch, beam, depth), query.new_empty(batch, beam, places)
    kernel(
        *(
            "single_head_attention",
            batch * beam,
            beam,
            places,
            width,
            depth,
            mask.data_ptr(),
            query.data_ptr(),
            keys.data_ptr(),
        ),
        None if vector is None else vector.data_ptr(),
        *(values.data_ptr(), context.data_ptr(), weights.data_ptr()),
    )
    return Look(context, weights)
