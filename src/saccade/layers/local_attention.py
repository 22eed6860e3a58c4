"""Restricted self-attention: each place sees the places at most `radius` away (Vaswani et al. 2017, section 4).

Time and memory are linear in the length, forward and backward: the sequence is cut into blocks, and a block of queries
meets only the keys that one of them may see. The n·n matrix of scores never exists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.errors import SaccadeError
from saccade.layers.attention import Attended, attend, merge_heads, split_heads
from saccade.layers.masks import window_mask
from saccade.layers.multi_head import self_attention_projections

SMALLEST_BLOCK = 32
"""Queries that are computed together at least; below that the kernel's own work counts for more than the scores."""


def local_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    radius: int,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    record: bool = False,
) -> Attended:
    """Attend from queries (B, H, T, d) to the keys and values (B, H, T, d) of places at most `radius` away.

    `mask` (B, T) is True where a place is real; `causal` hides the places after the query's own. A padded place sees
    itself, so that no row is empty: kernels differ in what they make of those, and NaN would spread. Recorded weights
    are dense, (B, H, T, T), and made on the explicit path, which takes nothing for such a row.
    """
    length = query.size(2)
    after = 0 if causal else radius
    block = max(radius, SMALLEST_BLOCK)
    if record or length <= block + radius + after:  # one span of keys holds them all
        near = window_mask(length, length, radius, query.device)
        seen = near if mask is None else near & mask[:, None, None]
        if mask is not None and not record:
            seen = seen | torch.eye(length, dtype=torch.bool, device=query.device)
        return attend(query, key, value, seen, causal=causal, dropout=dropout, record=record)
    queries = windows(query, block, 0, 0)  # (B·N, H, block, d), N blocks a sequence
    keys = windows(key, block, radius, after)  # (B·N, H, span, d)
    values = windows(value, block, radius, after)
    seen = seen_of_windows(mask, query, block, radius, after)  # (B·N, 1, block, span)
    # Measured at T = 4096, radius 64, d = 64, 4 heads, one core, forward and backward: 55 ms on the fused kernel,
    # 80 ms with an explicit softmax, 700 ms for full attention on the fused kernel.
    context = F.scaled_dot_product_attention(queries, keys, values, seen, dropout)
    rows = context.transpose(1, 2).reshape(query.size(0), -1, query.size(1), value.size(3))  # (B, N·block, H, d)
    return Attended(rows[:, :length].transpose(1, 2), None)


def windows(x: Tensor, block: int, before: int, after: int) -> Tensor:
    """Cut x (B, H, T, d) into blocks, each with its neighbourhood: (B·N, H, before + block + after, d).

    What lies outside of the sequence has no meaning: zeros, or places of the sequence that is next in the batch.
    """
    cut: Tensor = Windows.apply(x.transpose(1, 2), block, before, after)  # type: ignore[no-untyped-call]
    return cut.transpose(1, 2)


class Windows(torch.autograd.Function):
    """Overlapping windows as one view: all sequences stand in one row, so that one stride leads from block to block.

    The backward pass adds the pieces of the windows block by block; with that of `Tensor.unfold` attention took 90 ms
    where it now takes 55.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int, before: int, after: int) -> Tensor:
        """x (B, T, H, d) to (B·N, before + block + after, H, d)."""
        rows, length, *vector = x.shape
        blocks = -(-length // block)
        ctx.shape, ctx.block, ctx.before = x.shape, block, before
        places = rows * blocks * block
        row = x.new_empty(before + places + after, *vector)
        row[:before] = 0.0
        row[before + places :] = 0.0
        inner = row[before : before + places].view(rows, blocks * block, *vector)
        inner[:, :length] = x
        inner[:, length:] = 0.0
        return row.unfold(0, before + block + after, block).movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Each place gets the sum over the windows it stood in."""
        rows, length, *vector = ctx.shape
        block, span = ctx.block, gradient.size(1)
        pieces = -(-span // block)
        row = gradient.new_zeros(len(gradient) + pieces - 1, block, *vector)
        for piece in range(pieces):
            part = gradient[:, piece * block : (piece + 1) * block]
            row[piece : piece + len(gradient), : part.size(1)] += part
        places = row.flatten(0, 1)[ctx.before : ctx.before + len(gradient) * block]
        return places.view(rows, -1, *vector)[:, :length], None, None, None


def seen_of_windows(mask: Tensor | None, like: Tensor, block: int, before: int, after: int) -> Tensor:
    """(B·N, 1, block, span): True where a query of a block may look, for queries like `like` (B, H, T, d)."""
    batch, _, length, _ = like.shape
    real = torch.ones(1, length, dtype=torch.bool, device=like.device) if mask is None else mask
    span = before + block + after
    outside = -length % block + after
    there = F.pad(real, (before, outside), value=False).unfold(1, span, block)  # (B, N, span)
    # The query in place i of its block stands in place i + before of its span.
    steps = torch.arange(span, device=like.device) - torch.arange(block, device=like.device)[:, None]
    band = (steps >= 0) & (steps <= before + after)  # (block, span)
    seen = (band & there[:, :, None]) | (steps == before)  # (B, N, block, span)
    return seen.expand(batch, -1, -1, -1).flatten(0, 1).unsqueeze(1)


class LocalPast(NamedTuple):
    """The cache of a decoder: keys and values of the last `radius` places, and how many places there were in all."""

    keys: Tensor  # (N, H, min(place, radius), d)
    values: Tensor  # (N, H, min(place, radius), d)
    place: int


class LocalSelfAttention(nn.Module):
    """Multi-head self-attention with a radius; parameters as `SelfAttention`."""

    def __init__(self, width: int, heads: int, radius: int, dropout: float = 0.0) -> None:
        super().__init__()
        if radius < 0:
            raise SaccadeError(f"a radius of {radius} places", do="give 0 or more")
        self.heads = heads
        self.radius = radius
        self.dropout = dropout
        self.query_key_value, self.output = self_attention_projections(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False, record: bool = False) -> Attended:
        """x (B, T, D); mask (B, T), True where a place is real."""
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        attended = local_attend(query, key, value, self.radius, mask, causal=causal, dropout=dropout, record=record)
        weights = attended.weights
        if weights is not None and mask is not None:
            weights = without_empty_rows(weights, mask)
        return Attended(self.output(merge_heads(attended.context)), weights)

    def step(self, x: Tensor, past: LocalPast, *, record: bool = False) -> tuple[Attended, LocalPast]:
        """One new place x (N, 1, D) that sees itself and the `radius` places before it; its cost is constant."""
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x).chunk(3, -1))
        keys, values = torch.cat([past.keys, key], 2), torch.cat([past.values, value], 2)
        attended = attend(query, keys, values, record=record)
        forgotten = past.place + 1 - keys.size(2)  # places that have left the cache
        weights = None if attended.weights is None else F.pad(attended.weights, (forgotten, 0))
        left = max(0, keys.size(2) - self.radius)
        cache = LocalPast(keys[:, :, left:], values[:, :, left:], past.place + 1)
        return Attended(self.output(merge_heads(attended.context)), weights), cache

    def empty(self, like: Tensor) -> LocalPast:
        """The cache before the first place, for a batch like `like` (N, …)."""
        width = self.output.in_features
        nothing = self.output.weight.new_empty(like.size(0), self.heads, 0, width // self.heads)
        return LocalPast(nothing, nothing, 0)


def without_empty_rows(weights: Tensor, mask: Tensor) -> Tensor:
    """Recorded weights (B, H, T, T) whose rows all sum to 1, as a record promises; mask (B, T).

    A padded place far from the sentence sees nothing of it, and nobody reads its context; in the record its row is
    spread evenly over the sentence.
    """
    even = mask / mask.sum(1, keepdim=True).clamp(min=1)  # (B, T)
    empty = ~(weights > 0).any(-1, keepdim=True)  # (B, H, T, 1)
    return torch.where(empty, even[:, None, None].to(weights), weights)
