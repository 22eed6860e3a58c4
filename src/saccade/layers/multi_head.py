"""Multi-head attention: H independent heads, each with its own projections, side by side in one matrix.

Vaswani et al. 2017, section 3.2.2: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), concatenated, then projected by W^O.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.layers.attention import Attended, attend, merge_heads, split_heads
from saccade.ops.kv_cache_attention import KVCache, MemoryCache, kv_cache_attention, memory_attention
from saccade.ops.linear import packed_linear
from saccade.ops.packed import PackedLayout
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention


class KeysValues(NamedTuple):
    """ProjectedColumn keys and values; in decoding they are the cache."""

    keys: Tensor  # (B, H, S, d)
    values: Tensor  # (B, H, S, d)

    @property
    def place(self) -> int:
        """How many places there are: in decoding, the place of the next token."""
        return self.keys.size(2)


def self_attention_projections(width: int) -> tuple[nn.Linear, nn.Linear]:
    """(queries, keys and values in one product instead of three; the output), as self-attention begins with them."""
    query_key_value, output = nn.Linear(width, 3 * width), nn.Linear(width, width)
    for part in query_key_value.weight.chunk(3):
        nn.init.xavier_uniform_(part)
    nn.init.zeros_(query_key_value.bias)
    nn.init.xavier_uniform_(output.weight)
    nn.init.zeros_(output.bias)
    return query_key_value, output


class SelfAttention(nn.Module):
    """Attention of X to X: queries, keys and values are three projections of one sequence."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value, self.output = self_attention_projections(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False, record: bool = False) -> Attended:
        """x (B, T, D); mask (B, T), True where a place is real."""
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x).chunk(3, -1))
        seen = None if mask is None else mask[:, None, None]  # (B, 1, 1, T)
        attended = attend(query, key, value, seen, causal=causal, dropout=self.active_dropout(), record=record)
        return Attended(self.output(merge_heads(attended.context)), attended.weights)

    def rows(self, x: Tensor, layout: PackedLayout, *, causal: bool = False) -> Tensor:
        """Of a packed batch (N, D), without the last bias."""
        qkv = packed_linear(x, self.query_key_value.weight)  # (N, 3D)
        attended = varlen_self_attention(qkv, self.query_key_value.bias, layout, self.heads, causal=causal)
        return packed_linear(attended.context, self.output.weight)

    def step_rows(self, x: Tensor, cache: KVCache, layer: int, record: bool) -> Attended:
        """The last place x (N, D) of a past that has room for it, without the last bias."""
        with torch.no_grad():
            torch.mm(x, self.query_key_value.weight.t(), out=cache.steps.value[-1][layer])
        attended = kv_cache_attention(cache, layer, self.query_key_value.bias, self.heads, record=record)
        return Attended(packed_linear(attended.context, self.output.weight), attended.weights)

    def step(self, x: Tensor, past: KeysValues, *, record: bool = False) -> tuple[Attended, KeysValues]:
        """One new place x (B, 1, D) that sees all of `past` and itself."""
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x).chunk(3, -1))
        cache = KeysValues(torch.cat([past.keys, key], 2), torch.cat([past.values, value], 2))
        attended = attend(query, cache.keys, cache.values, record=record)
        return Attended(self.output(merge_heads(attended.context)), attended.weights), cache

    def empty(self, like: Tensor) -> KeysValues:
        """The cache before the first place, for a batch like `like` (B, …)."""
        width = self.output.in_features
        nothing = self.output.weight.new_empty(like.size(0), self.heads, 0, width // self.heads)
        return KeysValues(nothing, nothing)

    def active_dropout(self) -> float:
        """The dropout of the attention weights, 0 outside of training."""
        return self.dropout if self.training else 0.0


def cross_attention_projections(width: int, memory_width: int) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """(queries; keys and values in one product instead of two; the output), as cross-attention begins with them."""
    query, key_value, output = nn.Linear(width, width), nn.Linear(memory_width, 2 * width), nn.Linear(width, width)
    for part in (query.weight, *key_value.weight.chunk(2), output.weight):
        nn.init.xavier_uniform_(part)
    for bias in (query.bias, key_value.bias, output.bias):
        nn.init.zeros_(bias)
    return query, key_value, output


def keys_and_values(both: Tensor, heads: int) -> KeysValues:
    """What was projected together (B, S, 2D), by heads."""
    return KeysValues(*(split_heads(part, heads) for part in both.chunk(2, -1)))


class CrossAttention(nn.Module):
    """Queries from the decoder, keys and values from the memory."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, memory_width: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query, self.key_value, self.output = cross_attention_projections(width, memory_width or width)

    def project(self, states: Tensor) -> KeysValues:
        """Keys and values of a memory (B, S, D); in decoding they are made once."""
        return keys_and_values(self.key_value(states), self.heads)

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor, *, record: bool = False) -> Attended:
        """All target places x (B, T, D); mask (B, S)."""
        query = split_heads(self.query(x), self.heads)
        dropout = self.dropout if self.training else 0.0
        attended = attend(query, memory.keys, memory.values, mask[:, None, None], dropout=dropout, record=record)
        return Attended(self.output(merge_heads(attended.context)), attended.weights)

    def step(self, x: Tensor, memory: KeysValues, mask: Tensor, place: int, *, record: bool = False) -> Attended:
        """One target place of W hypotheses x (B, W, D): it sees all, wherever it stands."""
        return self.forward(x, memory, mask, record=record)

    def rows(self, x: Tensor, layout: PackedLayout, memory: Tensor, memory_layout: PackedLayout) -> Tensor:
        """Of a packed batch (N, D) to a packed memory (M, D), without the last bias."""
        query, kv = packed_linear(x, self.query.weight), packed_linear(memory, self.key_value.weight)  # (N, D), (M, 2D)
        projections = query, self.query.bias, kv, self.key_value.bias
        attended = varlen_cross_attention(*projections, layout, memory_layout, self.heads)
        return packed_linear(attended.context, self.output.weight)

    def step_rows(self, x: Tensor, memory: MemoryCache, layer: int, mask: Tensor, record: bool) -> Attended:
        """One new place x (N, D) of each hypothesis, mask (B, S), without the last bias."""
        query, biases = packed_linear(x, self.query.weight), (self.query.bias, self.key_value.bias)
        attended = memory_attention(query, biases[0], memory, layer, biases[1], mask.size(1), self.heads, record=record)
        return Attended(packed_linear(attended.context, self.output.weight), attended.weights)
