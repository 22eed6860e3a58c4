"""Restricted self-attention to positions at most `radius` away (Vaswani et al. 2017, section 4).

Time and memory are linear in the length, forward and backward: the sequence is cut into blocks, and a block of queries
is scored only against the keys that one of them may attend to. The n·n matrix of scores never exists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.errors import SaccadeError
from saccade.layers.attention import Attended, attend
from saccade.layers.masks import window_mask
from saccade.layers.multi_head import SelfAttentionStep, self_attention_projections
from saccade.layers.residual import SublayerOutput
from saccade.ops.attention_reference import merge_heads, split_heads
from saccade.ops.kv_cache import KVCache
from saccade.ops.kv_cache_attention import kv_cache_attention
from saccade.ops.linear import packed_linear
from saccade.ops.packed import PackedLayout

MIN_BLOCK = 32
"""The smallest block of queries; with smaller ones the overhead of the kernel exceeds the cost of the scores."""


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
    """Attend from queries (B, H, T, d) to the keys and values (B, H, T, d) of positions at most `radius` away.

    `mask` (B, T) is True where a position is real; `causal` hides later positions. A padding position attends to
    itself, so that no row is empty: kernels differ in their result for empty rows, and NaN would spread. Recorded
    weights are dense, (B, H, T, T); the explicit path gives an empty row the weight 0.
    """
    length = query.size(2)
    after = 0 if causal else radius
    block = max(radius, MIN_BLOCK)
    if record or length <= block + radius + after:  # one span contains all keys
        near = window_mask(length, length, radius, query.device)
        visible = near if mask is None else near & mask[:, None, None]
        if mask is not None and not record:
            visible = visible | torch.eye(length, dtype=torch.bool, device=query.device)
        return attend(query, key, value, visible, causal=causal, dropout=dropout, record=record)
    queries = windows(query, block, 0, 0)  # (B·N, H, block, d), N blocks a sequence
    keys = windows(key, block, radius, after)  # (B·N, H, span, d)
    values = windows(value, block, radius, after)
    visible = visible_in_windows(mask, query, block, radius, after)  # (B·N, 1, block, span)
    # Measured at T = 4096, radius 64, d = 64, 4 heads, one core, forward and backward: 55 ms on the fused kernel,
    # 80 ms with an explicit softmax, 700 ms for full attention on the fused kernel.
    context = F.scaled_dot_product_attention(queries, keys, values, visible, dropout)
    rows = context.transpose(1, 2).reshape(query.size(0), -1, query.size(1), value.size(3))  # (B, N·block, H, d)
    return Attended(rows[:, :length].transpose(1, 2), None)


def windows(x: Tensor, block: int, before: int, after: int) -> Tensor:
    """Cut x (B, H, T, d) into blocks, each with its neighborhood: (B·N, H, before + block + after, d).

    Positions outside of the sequence are meaningless: zeros, or positions of the next sequence of the batch.
    """
    cut: Tensor = Windows.apply(x.transpose(1, 2), block, before, after)  # type: ignore[no-untyped-call]
    return cut.transpose(1, 2)


class Windows(torch.autograd.Function):
    """Overlapping windows as one view: all sequences are concatenated, so that one stride leads from block to block.

    The backward pass adds the parts of the windows block by block: attention takes 55 ms with it, and 90 ms with that
    of `Tensor.unfold`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int, before: int, after: int) -> Tensor:
        """x (B, T, H, d) to (B·N, before + block + after, H, d)."""
        rows, length, *vector = x.shape
        blocks = -(-length // block)
        ctx.shape, ctx.block, ctx.before = x.shape, block, before
        total = rows * blocks * block
        row = x.new_empty(before + total + after, *vector)
        row[:before] = 0.0
        row[before + total :] = 0.0
        inner = row[before : before + total].view(rows, blocks * block, *vector)
        inner[:, :length] = x
        inner[:, length:] = 0.0
        return row.unfold(0, before + block + after, block).movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of a position is the sum over the windows that contain it."""
        rows, length, *vector = ctx.shape
        block, span = ctx.block, gradient.size(1)
        pieces = -(-span // block)
        row = gradient.new_zeros(len(gradient) + pieces - 1, block, *vector)
        for piece in range(pieces):
            part = gradient[:, piece * block : (piece + 1) * block]
            row[piece : piece + len(gradient), : part.size(1)] += part
        positions = row.flatten(0, 1)[ctx.before : ctx.before + len(gradient) * block]
        return positions.view(rows, -1, *vector)[:, :length], None, None, None


def visible_in_windows(mask: Tensor | None, like: Tensor, block: int, before: int, after: int) -> Tensor:
    """(B·N, 1, block, span): True where a query of a block may attend, for queries like `like` (B, H, T, d)."""
    batch, _, length, _ = like.shape
    real = torch.ones(1, length, dtype=torch.bool, device=like.device) if mask is None else mask
    span = before + block + after
    outside = -length % block + after
    real_in_span = F.pad(real, (before, outside), value=False).unfold(1, span, block)  # (B, N, span)
    # Query i of a block is at position i + before of its span.
    steps = torch.arange(span, device=like.device) - torch.arange(block, device=like.device)[:, None]
    band = (steps >= 0) & (steps <= before + after)  # (block, span)
    visible = (band & real_in_span[:, :, None]) | (steps == before)  # (B, N, block, span)
    return visible.expand(batch, -1, -1, -1).flatten(0, 1).unsqueeze(1)


class LocalSelfAttention(nn.Module):
    """Multi-head self-attention with a radius; parameters as `SelfAttention`."""

    def __init__(self, width: int, heads: int, radius: int, dropout: float = 0.0) -> None:
        super().__init__()
        if radius < 0:
            raise SaccadeError(f"an attention radius of {radius}", hint="give 0 or more")
        self.heads = heads
        self.radius = radius
        self.dropout = dropout
        self.query_key_value, self.output = self_attention_projections(width)

    def forward(self, x: Tensor, layout: PackedLayout, *, causal: bool = False, record: bool = False) -> SublayerOutput:
        """x (N, D) packed; recorded weights are (B, H, T, T)."""
        qkv = packed_linear(x, self.query_key_value.weight) + self.query_key_value.bias  # (N, 3D)
        query, key, value = (split_heads(part, self.heads) for part in layout.unpack(qkv).chunk(3, -1))
        dropout, mask = self.dropout if self.training else 0.0, layout.mask
        attended = local_attend(query, key, value, self.radius, mask, causal=causal, dropout=dropout, record=record)
        weights = None if attended.weights is None else without_empty_rows(attended.weights, mask)
        return self.project(layout.pack(merge_heads(attended.context)), weights)

    def start(self, hypotheses: int, like: Tensor) -> KVCache:
        """The cache before the first position, for inputs like this tensor (..., D)."""
        return KVCache.empty(hypotheses, like)

    def step(self, x: Tensor, cache: KVCache, *, record: bool = False) -> SelfAttentionStep:
        """One new position x (N, D), which attends to itself and `radius` earlier ones; its cost is constant."""
        bias = self.query_key_value.bias
        qkv = packed_linear(x, self.query_key_value.weight)  # (N, 3D)
        cache = cache.append(qkv, bias, window=self.radius + 1)
        attended = kv_cache_attention(qkv, cache, bias, self.heads, record=record)
        weights = None if attended.weights is None else F.pad(attended.weights, (cache.dropped, 0))
        return SelfAttentionStep(self.project(attended.context, weights), cache)

    def project(self, context: Tensor, weights: Tensor | None) -> SublayerOutput:
        """W^O of the heads' contexts (N, D)."""
        return SublayerOutput(packed_linear(context, self.output.weight), self.output.bias, weights)


def without_empty_rows(weights: Tensor, mask: Tensor) -> Tensor:
    """Recorded weights (B, H, T, T) whose rows all sum to 1; mask (B, T).

    A padding position far from the sentence attends to no position, and its context is not used; its recorded row is
    uniform over the sentence.
    `mask` is True at real positions.
    """
    even = mask / mask.sum(1, keepdim=True).clamp(min=1)  # (B, T)
    empty = ~(weights > 0).any(-1, keepdim=True)  # (B, H, T, 1)
    return torch.where(empty, even[:, None, None].to(weights), weights)
