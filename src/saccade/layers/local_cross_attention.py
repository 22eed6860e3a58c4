"""Restricted cross-attention to source positions near the target position (Luong et al. 2015, section 3.2).

Target position t is centered on source position p·t, or on the last real one if the source ends before that: the
paper's local-m, whose length ratio p is 1. The cost of a target position does not depend on the length of the source:
blocks of queries are scored only against the keys that one of them may attend to, and the matrix
of all scores never exists.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.attention import Attended, attend
from saccade.layers.local_attention import MIN_BLOCK
from saccade.layers.multi_head import cross_attention_projections
from saccade.layers.residual import SublayerOutput
from saccade.ops.attention_reference import merge_heads, split_heads
from saccade.ops.kv_cache import MemoryCache
from saccade.ops.kv_cache_attention import Window, memory_attention
from saccade.ops.linear import packed_linear
from saccade.ops.packed import PackedLayout


class KeysValues(NamedTuple):
    """Keys and values of a padded memory, by heads."""

    keys: Tensor  # (B, H, S, d)
    values: Tensor  # (B, H, S, d)


class Band(NamedTuple):
    """The source positions that a target position attends to: `radius` on each side of its center."""

    radius: int
    length_ratio: float

    def centers(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """The source positions (B, T) of target positions (T,), in sources of these lengths (B,)."""
        own = (positions.double() * self.length_ratio).round().long()
        return torch.minimum(own, (lengths - 1).clamp(min=0)[:, None])

    def visible(self, centers: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """(B, …, T, S): whether source positions (B, …, S) are in the bands around centers (B, …, T)."""
        near = (positions[..., None, :] - centers[..., None]).abs() <= self.radius
        return near & (positions < lengths.view(-1, *(1,) * (positions.dim() - 1)))[..., None, :]

    def window(self, position: int, lengths: Tensor) -> Window:
        """The band of one target position in sources of these lengths (B,)."""
        center = self.centers(torch.arange(position, position + 1, device=lengths.device), lengths)[:, 0]  # (B,)
        starts = (center - self.radius).clamp(min=0)
        return Window(starts, torch.minimum(center + self.radius + 1, lengths) - starts, 2 * self.radius + 1)


def local_cross_attend(
    query: Tensor, memory: KeysValues, mask: Tensor, band: Band, *, dropout: float = 0.0, record: bool = False
) -> Attended:
    """Attend from all target positions, queries (B, H, T, d), to a memory of keys and values (B, H, S, d).

    `mask` (B, S) is True where a source position is real; those come first. Recorded weights are dense, (B, H, T, S).
    """
    (batch, heads, length, width), source, device = query.shape, mask.size(1), mask.device
    block = max(band.radius, MIN_BLOCK)
    span = (
        math.ceil(band.length_ratio * (block - 1)) + 2 * band.radius + 2
    )  # the bands of a block; one more for rounding
    if record or source <= span:
        positions = torch.arange(length, device=device)
        return dense_cross_attend(query, memory, mask, band, positions, dropout=dropout, record=record)
    blocks, lengths = -(-length // block), mask.sum(1)
    centers = band.centers(torch.arange(blocks * block, device=device), lengths).view(batch, blocks, block)
    starts = (centers[:, :, 0] - band.radius).clamp(0, source - span)  # (B, N)
    visible = band.visible(
        centers, starts[:, :, None] + torch.arange(span, device=device), lengths
    )  # (B, N, block, span)
    queries = F.pad(query, (0, 0, 0, blocks * block - length)).view(batch, heads, blocks, block, width)
    queries = queries.transpose(1, 2).flatten(0, 1)  # (B·N, H, block, d)
    keys, values = slices(memory.keys, starts, span), slices(memory.values, starts, span)  # (B·N, H, span, d)
    context = F.scaled_dot_product_attention(queries, keys, values, visible.flatten(0, 1)[:, None], dropout)
    rows = context.reshape(batch, blocks, heads, block, -1).transpose(1, 2).flatten(2, 3)  # (B, H, N·block, d)
    return Attended(rows[:, :, :length], None)


def dense_cross_attend(
    query: Tensor,
    memory: KeysValues,
    mask: Tensor,
    band: Band,
    positions: Tensor,
    *,
    dropout: float = 0.0,
    record: bool = False,
) -> Attended:
    """Attend with all scores and a band mask: queries (B, H, T, d) of target positions (T,).

    `mask` is True at real positions.
    """
    lengths = mask.sum(1)
    source = torch.arange(mask.size(1), device=mask.device).expand_as(mask)
    visible = band.visible(band.centers(positions, lengths), source, lengths)  # (B, T, S)
    return attend(query, *memory, visible[:, None], dropout=dropout, record=record)


def slices(x: Tensor, starts: Tensor, span: int) -> Tensor:
    """Slices of `span` positions of each row of x (B, H, S, d) from each of its starts (B, N): (B·N, H, span, d)."""
    cut: Tensor = Slices.apply(x.transpose(1, 2), starts, span)  # type: ignore[no-untyped-call]
    return cut.transpose(1, 2)


class Slices(torch.autograd.Function):
    """Overlapping slices of sequences; the backward pass adds slice by slice, `index_put_` entry by entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, starts: Tensor, span: int) -> Tensor:
        """x (B, S, H, d) to (B·N, span, H, d)."""
        ctx.shape, ctx.starts = x.shape, starts
        rows = torch.arange(len(starts), device=x.device)[:, None, None]
        return x[rows, starts[:, :, None] + torch.arange(span, device=x.device)].flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of a position is the sum over the slices that contain it."""
        batch, blocks = ctx.starts.shape
        span = gradient.size(1)
        parts, total = gradient.reshape(batch, blocks, *gradient.shape[1:]), gradient.new_zeros(ctx.shape)
        for row, starts in enumerate(ctx.starts.tolist()):
            for part, start in enumerate(starts):
                total[row, start : start + span] += parts[row, part]
        return total, None, None


class LocalCrossAttention(nn.Module):
    """Multi-head cross-attention within a band; parameters as `CrossAttention`."""

    def __init__(self, width: int, heads: int, band: Band, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.band = band
        self.dropout = dropout
        self.query, self.key_value, self.output = cross_attention_projections(width, width)

    def forward(
        self, x: Tensor, layout: PackedLayout, memory: Tensor, memory_layout: PackedLayout, *, record: bool = False
    ) -> SublayerOutput:
        """x (N, D) and memory (M, D) packed; recorded weights are (B, H, T, S)."""
        query = packed_linear(x, self.query.weight) + self.query.bias  # (N, D)
        kv = packed_linear(memory, self.key_value.weight) + self.key_value.bias  # (M, 2D)
        keys_values = KeysValues(*(split_heads(part, self.heads) for part in memory_layout.unpack(kv).chunk(2, -1)))
        attended = local_cross_attend(
            *(split_heads(layout.unpack(query), self.heads), keys_values, memory_layout.mask, self.band),
            dropout=self.dropout if self.training else 0.0,
            record=record,
        )
        return self.project(layout.pack(merge_heads(attended.context)), attended.weights)

    def start(self, memory: Tensor, layout: PackedLayout) -> MemoryCache:
        """Keys and values of a packed memory (M, D)."""
        return MemoryCache.of(packed_linear(memory, self.key_value.weight), self.key_value.bias, layout)

    def step(self, x: Tensor, memory: MemoryCache, position: int, *, record: bool = False) -> SublayerOutput:
        """One new position x (N, D) of N = B·W hypotheses; its cost is constant."""
        query = packed_linear(x, self.query.weight)
        biases, window = (self.query.bias, self.key_value.bias), self.band.window(position, memory.counts)
        attended = memory_attention(query, biases[0], memory, biases[1], self.heads, window=window, record=record)
        return self.project(attended.context, attended.weights)

    def project(self, context: Tensor, weights: Tensor | None) -> SublayerOutput:
        """W^O of the heads' contexts (N, D)."""
        return SublayerOutput(packed_linear(context, self.output.weight), self.output.bias, weights)
