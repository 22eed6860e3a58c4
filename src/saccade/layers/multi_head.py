"""Multi-head attention: H independent heads, each with its own projections, concatenated in one matrix.

Vaswani et al. 2017, section 3.2.2: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), concatenated, then projected by W^O.
Sequences are packed (ops/packed.py). The ops add the biases of the projections; the residual connection adds that of
the output.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from saccade.layers.residual import SublayerOutput
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.kv_cache_attention import kv_cache_attention, memory_attention
from saccade.ops.linear import packed_linear
from saccade.ops.packed import PackedLayout
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention


class SelfAttentionStep(NamedTuple):
    """Self-attention of one new position per hypothesis, and the cache with that position."""

    output: SublayerOutput  # (N, D)
    cache: KVCache


def self_attention_projections(width: int) -> tuple[nn.Linear, nn.Linear]:
    """Initialized layers: queries, keys and values in one product instead of three, and the output."""
    query_key_value, output = nn.Linear(width, 3 * width), nn.Linear(width, width)
    for part in query_key_value.weight.chunk(3):
        nn.init.xavier_uniform_(part)
    nn.init.zeros_(query_key_value.bias)
    nn.init.xavier_uniform_(output.weight)
    nn.init.zeros_(output.bias)
    return query_key_value, output


class SelfAttention(nn.Module):
    """Self-attention: queries, keys and values are three projections of one sequence."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value, self.output = self_attention_projections(width)

    def forward(self, x: Tensor, layout: PackedLayout, *, causal: bool = False, record: bool = False) -> SublayerOutput:
        """x (N, D) packed; recorded weights are (B, H, T, T)."""
        qkv = packed_linear(x, self.query_key_value.weight)  # (N, 3D)
        attended = varlen_self_attention(
            *(qkv, self.query_key_value.bias, layout, self.heads),
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            record=record,
        )
        return self.project(attended.context, attended.weights)

    def start(self, hypotheses: int, like: Tensor) -> KVCache:
        """The cache before the first position, for inputs like this tensor (..., D)."""
        return KVCache.empty(hypotheses, like)

    def step(self, x: Tensor, cache: KVCache, *, record: bool = False) -> SelfAttentionStep:
        """One new position x (N, D), which attends to the cached ones and itself."""
        bias = self.query_key_value.bias
        qkv = packed_linear(x, self.query_key_value.weight)  # (N, 3D)
        cache = cache.append(qkv, bias)
        attended = kv_cache_attention(qkv, cache, bias, self.heads, record=record)
        return SelfAttentionStep(self.project(attended.context, attended.weights), cache)

    def project(self, context: Tensor, weights: Tensor | None) -> SublayerOutput:
        """W^O of the heads' contexts (N, D)."""
        return SublayerOutput(packed_linear(context, self.output.weight), self.output.bias, weights)


def cross_attention_projections(width: int, memory_width: int) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """Initialized layers: queries; keys and values in one product instead of two; the output."""
    query, key_value, output = nn.Linear(width, width), nn.Linear(memory_width, 2 * width), nn.Linear(width, width)
    for part in (query.weight, *key_value.weight.chunk(2), output.weight):
        nn.init.xavier_uniform_(part)
    for bias in (query.bias, key_value.bias, output.bias):
        nn.init.zeros_(bias)
    return query, key_value, output


class CrossAttention(nn.Module):
    """Queries from the decoder, keys and values from the memory."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, memory_width: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query, self.key_value, self.output = cross_attention_projections(width, memory_width or width)

    def forward(
        self, x: Tensor, layout: PackedLayout, memory: Tensor, memory_layout: PackedLayout, *, record: bool = False
    ) -> SublayerOutput:
        """x (N, D) and memory (M, D) packed; recorded weights are (B, H, T, S)."""
        query, kv = packed_linear(x, self.query.weight), packed_linear(memory, self.key_value.weight)  # (N, D), (M, 2D)
        attended = varlen_cross_attention(
            *(query, self.query.bias, kv, self.key_value.bias, layout, memory_layout, self.heads),
            dropout=self.dropout if self.training else 0.0,
            record=record,
        )
        return self.project(attended.context, attended.weights)

    def start(self, memory: Tensor, layout: PackedLayout) -> MemoryCache:
        """Keys and values of a packed memory (M, D)."""
        return MemoryCache.of(packed_linear(memory, self.key_value.weight), self.key_value.bias, layout)

    def step(self, x: Tensor, memory: MemoryCache, position: int, *, record: bool = False) -> SublayerOutput:
        """One new position x (N, D) of N = B·W hypotheses; it attends to all of the memory from any position."""
        query = packed_linear(x, self.query.weight)
        biases = self.query.bias, self.key_value.bias
        attended = memory_attention(query, biases[0], memory, biases[1], self.heads, record=record)
        return self.project(attended.context, attended.weights)

    def project(self, context: Tensor, weights: Tensor | None) -> SublayerOutput:
        """W^O of the heads' contexts (N, D)."""
        return SublayerOutput(packed_linear(context, self.output.weight), self.output.bias, weights)
