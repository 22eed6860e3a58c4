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

from saccade.layers.attention import Attended, attend, merge_heads, split_heads
from saccade.layers.local_attention import LocalSelfAttention
from saccade.layers.local_cross_attention import LocalCrossAttention, dense_cross_attend
from saccade.layers.masks import window_mask
from saccade.layers.mixture_of_experts import Mixed, MixtureOfExperts
from saccade.layers.multi_head import KeysValues
from saccade.layers.positions import SinusoidalPositions, sinusoids
from saccade.layers.recurrent import Bidirectional
from saccade.ops.recurrent_cells import RecurrentState

LONGEST = 2048  # positions of the sinusoid table in a graph; the layer itself extends its table on demand


def traceable(model: nn.Module) -> nn.Module:
    """A copy of a model for tracing."""
    found = copy.deepcopy(model).eval()
    for part in found.modules():
        change = FORMS.get(type(part))
        if change is not None:
            change(part)
    return found


def with_long_table(layer: SinusoidalPositions) -> None:
    """Give the layer a long sinusoid table, since a graph cannot extend it on demand."""
    layer.table = sinusoids(LONGEST, layer.width).to(layer.table)


def with_one_window(layer: LocalSelfAttention) -> None:
    """Use dense attention with a window mask instead of blocks, whose number depends on the length."""
    layer.forward = MethodType(within_window, layer)  # type: ignore[method-assign]


def within_window(
    layer: LocalSelfAttention,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    record: bool = False,
) -> Attended:
    """x (B, T, D), mask (B, T); a padding position attends to itself, as in `local_attend`."""
    query, key, value = (split_heads(part, layer.heads) for part in layer.query_key_value(x).chunk(3, -1))
    seen = window_mask(x.size(1), x.size(1), layer.radius, x.device)
    if mask is not None:
        places = torch.arange(x.size(1), device=x.device)
        seen = (seen & mask[:, None, None]) | (places[:, None] == places)
    attended = attend(query, key, value, seen, causal=causal)
    return Attended(layer.output(merge_heads(attended.context)), None)


def with_whole_memory(layer: LocalCrossAttention) -> None:
    """Use dense cross-attention with a band mask instead of slices of the memory."""
    layer.forward = MethodType(within_band, layer)  # type: ignore[method-assign]
    layer.step = MethodType(step_within_band, layer)  # type: ignore[method-assign]


def within_band(
    layer: LocalCrossAttention, x: Tensor, memory: KeysValues, mask: Tensor, *, record: bool = False
) -> Attended:
    """x (B, T, D), mask (B, S)."""
    query, places = split_heads(layer.query(x), layer.heads), torch.arange(x.size(1), device=x.device)
    return layer.finish(dense_cross_attend(query, memory, mask, layer.band, places))


def step_within_band(
    layer: LocalCrossAttention, x: Tensor, memory: KeysValues, mask: Tensor, place: int, *, record: bool = False
) -> Attended:
    """x (B, W, D), mask (B, S)."""
    query, places = split_heads(layer.query(x), layer.heads), torch.arange(place, place + 1, device=x.device)
    return layer.finish(dense_cross_attend(query, memory, mask, layer.band, places))


def with_all_experts(layer: MixtureOfExperts) -> None:
    """Apply every expert to every position, with gate 0 for the experts that were not chosen."""
    layer.forward = MethodType(all_experts, layer)  # type: ignore[method-assign]


def all_experts(layer: MixtureOfExperts, x: Tensor, real: Tensor | None = None) -> Mixed:
    """x (B, T, D); the output is 0 at positions where `real` (B, T) is False."""
    flat = x.flatten(0, 1)  # (B·T, D)
    scores = layer.scores(flat)  # (B·T, E)
    best, chosen = scores.topk(layer.per_token, -1)  # (B·T, k)
    gates = torch.zeros_like(scores).scatter(1, chosen, layer.gates(scores, best))  # (B·T, E)
    inner = F.relu(torch.matmul(flat, layer.expand) + layer.expand_bias[:, None])  # (E, B·T, inner)
    outer = torch.matmul(inner, layer.contract) + layer.contract_bias[:, None]  # (E, B·T, D)
    output = (outer * gates.t()[:, :, None]).sum(0).view(x.shape)
    return Mixed(output if real is None else output * real[:, :, None], None)


def with_all_tokens(layer: Bidirectional) -> None:
    """Embed every token of a batch: the number of distinct ones is not known in a graph."""
    layer.of_tokens = MethodType(all_tokens, layer)  # type: ignore[method-assign]


def all_tokens(
    layer: Bidirectional, embed: Callable[[Tensor], Tensor], tokens: Tensor, mask: Tensor
) -> tuple[Tensor, RecurrentState, RecurrentState]:
    """tokens (B, S), mask (B, S)."""
    return layer(embed(tokens), mask)  # type: ignore[no-any-return]


FORMS: Mapping[type[nn.Module], Callable[[Any], None]] = {
    SinusoidalPositions: with_long_table,
    LocalSelfAttention: with_one_window,
    LocalCrossAttention: with_whole_memory,
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
    """`len` whose result for a tensor is recorded in a trace."""
    return value.size(0) if isinstance(value, Tensor) else builtins.len(value)
