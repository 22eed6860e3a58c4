"""Models in a form that `torch.jit.trace` can record: without control flow that depends on the input.

A trace records the tensor operations of one example; every Python branch is fixed. So layers that branch on the length
of the input or on tensor values are replaced here by equivalent forms without branches.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.attention import attend
from saccade.layers.local_attention import LocalSelfAttention
from saccade.layers.local_cross_attention import LocalCrossAttention
from saccade.layers.masks import window_mask
from saccade.layers.mixture_of_experts import MixtureOfExperts
from saccade.layers.positions import SinusoidalPositions, sinusoids
from saccade.layers.recurrent import Bidirectional
from saccade.layers.residual import SublayerOutput
from saccade.ops.attention_reference import merge_heads, split_heads
from saccade.ops.kv_cache import MemoryCache
from saccade.ops.kv_cache_attention import memory_reference
from saccade.ops.packed import PackedLayout
from saccade.ops.recurrent_cells import RecurrentState

MAX_POSITIONS = 2048  # positions of the sinusoid table in a graph; the layer itself extends its table on demand


def traceable(model: nn.Module) -> nn.Module:
    """Return a copy of a model for tracing."""
    copied = copy.deepcopy(model).eval()
    for layer in copied.modules():
        replace = REPLACEMENTS.get(type(layer))
        if replace is not None:
            replace(layer)
    return copied


def with_long_table(layer: SinusoidalPositions) -> None:
    """Give the layer a long sinusoid table, since a graph cannot extend it on demand."""
    layer.table = sinusoids(MAX_POSITIONS, layer.width).to(layer.table)


def with_window_mask(layer: LocalSelfAttention) -> None:
    """Use dense attention with a window mask instead of blocks, whose number depends on the length."""
    layer.forward = MethodType(attend_with_window_mask, layer)  # type: ignore[method-assign]


def attend_with_window_mask(
    layer: LocalSelfAttention, x: Tensor, layout: PackedLayout, *, causal: bool = False, record: bool = False
) -> SublayerOutput:
    """Dense self-attention over packed x (N, D); a padding position attends to itself, as in `local_attend`."""
    qkv = layout.unpack(layer.query_key_value(x))  # (B, T, 3D)
    query, key, value = (split_heads(part, layer.heads) for part in qkv.chunk(3, -1))
    positions = torch.arange(qkv.size(1), device=x.device)
    near = window_mask(qkv.size(1), qkv.size(1), layer.radius, x.device)
    visible = (near & layout.mask[:, None, None]) | (positions[:, None] == positions)
    attended = attend(query, key, value, visible, causal=causal)
    return layer.project(layout.pack(merge_heads(attended.context)), None)


def with_band_mask(layer: LocalCrossAttention) -> None:
    """Use dense cross-attention with a band mask instead of a slice of the memory."""
    layer.step = MethodType(step_with_band_mask, layer)  # type: ignore[method-assign]


def step_with_band_mask(
    layer: LocalCrossAttention, x: Tensor, memory: MemoryCache, position: int, *, record: bool = False
) -> SublayerOutput:
    """Cross-attention of one new position x (N, D)."""
    query, window = layer.query(x), layer.band.window(position, memory.counts)
    assert memory.padded is not None, "a traced model runs without kernels"
    attended = memory_reference(query, memory.padded, memory.counts, layer.heads, window=window, record=True)
    return layer.project(attended.context, None)


def with_all_experts(layer: MixtureOfExperts) -> None:
    """Apply every expert to every position, with gate 0 for the experts that were not chosen."""
    layer.forward = MethodType(all_experts, layer)  # type: ignore[method-assign]


def all_experts(layer: MixtureOfExperts, x: Tensor, layout: PackedLayout | None = None) -> SublayerOutput:
    """Mixture of experts for x (N, D) that computes every expert."""
    scores = layer.scores(x)  # (N, E)
    best, chosen = scores.topk(layer.per_token, -1)  # (N, k)
    gates = torch.zeros_like(scores).scatter(1, chosen, layer.gates(scores, best))  # (N, E)
    inner = F.relu(torch.matmul(x, layer.expand) + layer.expand_bias[:, None])  # (E, N, inner)
    outer = torch.matmul(inner, layer.contract) + layer.contract_bias[:, None]  # (E, N, D)
    return SublayerOutput((outer * gates.t()[:, :, None]).sum(0), None)


def with_all_tokens(layer: Bidirectional) -> None:
    """Embed every token of a batch: a graph cannot have a variable number of distinct tokens."""
    layer.of_tokens = MethodType(all_tokens, layer)  # type: ignore[method-assign]


def all_tokens(
    layer: Bidirectional, embed: Callable[[Tensor], Tensor], tokens: Tensor, mask: Tensor
) -> tuple[Tensor, RecurrentState, RecurrentState]:
    """Run both directions over the embeddings of tokens (B, S); mask (B, S), True = real position."""
    return layer(embed(tokens), mask)  # type: ignore[no-any-return]


REPLACEMENTS: Mapping[type[nn.Module], Callable[[Any], None]] = {
    SinusoidalPositions: with_long_table,
    LocalSelfAttention: with_window_mask,
    LocalCrossAttention: with_band_mask,
    MixtureOfExperts: with_all_experts,
    Bidirectional: with_all_tokens,
}


@contextlib.contextmanager
def lengths_recorded(model: nn.Module) -> Iterator[None]:
    """While active, a trace records `len(tensor)` as a size; the builtin `len` would make it a constant.

    The replacement is a module-level `len` in the modules of the model's layers, which shadows the builtin.
    """
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    modules |= {module for name, module in sys.modules.items() if name.startswith("saccade.ops.")}
    ours = [module for module in modules if not module.__name__.startswith("torch.") and "len" not in vars(module)]
    for module in ours:
        vars(module)["len"] = length
    try:
        yield
    finally:
        for module in ours:
            del vars(module)["len"]


def length(value: Any) -> Any:
    """Return `len(value)`; for a tensor, the result is recorded in a trace."""
    return value.size(0) if isinstance(value, Tensor) else builtins.len(value)
