"""Attention of one new position per hypothesis to its KV cache and to the memory; inference only on the kernel.

The projections of a step stay in the tensor that the step wrote. A hypothesis remembers which row of each earlier step
is its own past; beam search reorders these row numbers and never copies keys or values. Steps are not overwritten, so a
state can be branched and copied.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.csrc.library import kernel
from saccade.interface import Shared
from saccade.ops.arguments import address, require_alike, require_heads, require_shape, runs_on_inference_kernel
from saccade.ops.varlen_attention import split_heads


class KVCache(NamedTuple):
    """Projections of the earlier positions of N hypotheses in all layers."""

    origin: Tensor  # (N, t) the row of the hypothesis at each earlier step
    steps: Shared[tuple[Tensor, ...]]  # t times (L, N at that step, 3D): queries, keys and values without bias

    @property
    def position(self) -> int:
        """The number of cached positions: the position of the next token."""
        return self.origin.size(1)

    def append(self, step: Tensor) -> KVCache:
        """The cache with one more position, whose projections (L, N, 3D) the layers are going to write."""
        own = torch.arange(step.size(1), device=self.origin.device)[:, None]
        return KVCache(torch.cat([self.origin, own], 1), Shared((*self.steps.value, step)))


class MemoryCache(NamedTuple):
    """Keys and values of a packed memory in all layers."""

    first: Tensor  # (B,) the first row of each sentence
    counts: Tensor  # (B,) its number of rows
    kv: Shared[Tensor]  # (L, M, 2D) without bias


class StepAttention(NamedTuple):
    """The context of one position per hypothesis and, if recorded, its attention weights."""

    context: Tensor  # (N, D)
    weights: Tensor | None  # (N, H, 1, keys)


def empty_cache(hypotheses: int, device: torch.device) -> KVCache:
    """The cache before the first position."""
    return KVCache(torch.empty(hypotheses, 0, dtype=torch.int64, device=device), Shared(()))


def kv_cache_attention(cache: KVCache, layer: int, bias: Tensor, heads: int, *, record: bool = False) -> StepAttention:
    """Self-attention of the last cached position of each hypothesis to its whole cache, bias (3D,).

    The projections of the last position are already in the cache.
    """
    op, steps = "kv_cache_attention", cache.steps.value
    if len(steps) != cache.position or not steps:
        raise ValueError(f"{op}: {len(steps)} steps for {cache.position} positions")
    if not 0 <= layer < len(steps[-1]):
        raise IndexError(f"{op}: layer {layer} of {len(steps[-1])}")
    own = [step[layer] for step in steps]  # each (N at that step, 3D)
    last, width = own[-1], bias.numel() // 3
    require_alike(op, bias=bias, **{f"step {number}": step for number, step in enumerate(own)})
    require_shape(op, "bias", bias, 3 * width)
    require_heads(op, width, heads)
    for number, step in enumerate(own):
        require_shape(op, f"step {number}", step, None, 3 * width)
    require_shape(op, "last step", last, len(cache.origin), 3 * width)
    check_origin(op, cache.origin, own)
    if runs_on_inference_kernel(last) and all(step.is_contiguous() for step in own):
        bias, origin = bias.contiguous(), cache.origin.contiguous()
        context = last.new_empty(len(last), width)
        weights = last.new_empty(len(last), heads, 1, cache.position) if record else None
        pointers = (ctypes.c_void_p * len(own))(*(step.data_ptr() for step in own))
        sizes = len(last), heads, width // heads, cache.position
        inputs = *map(address, (origin, last, bias)), address(context), address(weights)
        kernel(op, *sizes, ctypes.addressof(pointers), *inputs)
        return StepAttention(context, weights)
    return kv_cache_reference(own, cache.origin, bias, heads, record=record)


def check_origin(op: str, origin: Tensor, steps: list[Tensor]) -> None:
    """Raise IndexError unless every hypothesis points at a row that its earlier step has."""
    if origin.dtype != torch.int64 or origin.device != steps[0].device:
        raise TypeError(f"{op}: origin is {origin.dtype} on {origin.device}")
    if origin.device.type == "cpu":
        sizes = torch.tensor([len(step) for step in steps])
        if bool(((origin < 0) | (origin >= sizes)).any()):
            raise IndexError(f"{op}: origin points at a row that an earlier step does not have")


def kv_cache_reference(
    steps: list[Tensor], origin: Tensor, bias: Tensor, heads: int, *, record: bool = False
) -> StepAttention:
    """The PyTorch reference: gather each hypothesis' keys and values, then attend."""
    lengths = torch.tensor([0, *(len(step) for step in steps[:-1])], device=origin.device)
    rows = origin + lengths.cumsum(0)  # (N, t)
    past = torch.cat(steps).index_select(0, rows.flatten()).view(*rows.shape, -1) + bias  # (N, t, 3D)
    query, (_, keys, values) = steps[-1] + bias, past.chunk(3, -1)
    query = query[:, : keys.size(-1)]
    query, keys, values = (split_heads(x, heads) for x in (query[:, None], keys, values))
    return attend_one(query, keys, values, None, record=record)


def attend_one(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, record: bool) -> StepAttention:
    """One query (N, H, 1, d) per hypothesis to keys and values (N, H, t, d) where mask (N, 1, 1, t) is True."""
    if not record:
        context = F.scaled_dot_product_attention(query, keys, values, mask)  # (N, H, 1, d)
        return StepAttention(context.flatten(1), None)
    scores = query @ keys.transpose(-1, -2) / query.size(-1) ** 0.5  # (N, H, 1, t)
    weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return StepAttention((weights @ values).flatten(1), weights)


def memory_attention(
    query: Tensor,
    query_bias: Tensor,
    memory: MemoryCache,
    layer: int,
    kv_bias: Tensor,
    longest: int,
    heads: int,
    *,
    record: bool = False,
) -> StepAttention:
    """Cross-attention of one position of N = B·W hypotheses, query (N, D), to the memory of their sentence.

    The W hypotheses of a sentence are consecutive rows. `longest` is the padded length of the memory and the last
    dimension of recorded weights.
    """
    op, width, kv = "memory_attention", query_bias.numel(), memory.kv.value
    require_alike(op, query=query, query_bias=query_bias, kv=kv, kv_bias=kv_bias)
    require_shape(op, "query_bias", query_bias, None)
    require_shape(op, "query", query, None, width)
    require_shape(op, "kv", kv, None, None, 2 * width)
    require_shape(op, "kv_bias", kv_bias, 2 * width)
    require_heads(op, width, heads)
    if not 0 <= layer < len(kv):
        raise IndexError(f"{op}: layer {layer} of {len(kv)}")
    sentences = len(memory.first)
    require_shape(op, "counts", memory.counts, sentences)
    if len(query) % max(1, sentences) or (len(query) and not sentences):
        raise ValueError(f"{op}: {len(query)} hypotheses of {sentences} sentences")
    check_memory(op, memory, longest)
    beam = len(query) // max(1, sentences)
    if runs_on_inference_kernel(query):
        query, query_bias, value_bias, own = (
            x.contiguous() for x in (query, query_bias, kv_bias[width:], memory.kv.value[layer])
        )
        first, counts = memory.first.contiguous(), memory.counts.contiguous()
        context = torch.empty_like(query)
        weights = query.new_zeros(len(query), heads, 1, longest) if record else None
        sizes = len(query), heads, width // heads, beam, longest
        inputs = map(address, (first, counts, own, query, query_bias, value_bias, context, weights))
        kernel(op, *sizes, *inputs)
        return StepAttention(context, weights)
    return memory_reference(query + query_bias, memory, layer, kv_bias, longest, heads, record=record)


def check_memory(op: str, memory: MemoryCache, longest: int) -> None:
    """Raise unless the sentences' rows are rows of the memory."""
    first, counts, rows = memory.first, memory.counts, memory.kv.value.size(1)
    if first.dtype != torch.int64 or counts.dtype != torch.int64:
        raise TypeError(f"{op}: first and counts must be torch.int64")
    if first.device.type == "cpu":
        outside = (first < 0) | (counts < 0) | (first + counts > rows) | (counts > longest)
        if bool(outside.any()):
            raise IndexError(f"{op}: a sentence has rows outside of the {rows} of the memory, or more than {longest}")


def memory_reference(
    query: Tensor,
    memory: MemoryCache,
    layer: int,
    kv_bias: Tensor,
    longest: int,
    heads: int,
    *,
    record: bool = False,
) -> StepAttention:
    """The PyTorch reference: pad the memory, then attend from all hypotheses of a sentence at once."""
    sentences, width = len(memory.first), query.size(1)
    beam = len(query) // max(1, sentences)
    positions = torch.arange(longest, device=query.device)
    visible = positions < memory.counts[:, None]  # (B, S)
    rows = torch.where(visible, memory.first[:, None] + positions, 0)
    kv = memory.kv.value[layer]
    padded = (
        kv.index_select(0, rows.flatten()).view(sentences, longest, -1)
        if len(kv)
        else kv.new_zeros(sentences, longest, 2 * width)
    )
    keys, values = (split_heads(x, heads) for x in (padded + kv_bias).chunk(2, -1))
    queries = query.view(sentences, beam, heads, -1).transpose(1, 2)  # (B, H, W, d)
    found = attend_one(queries, keys, values, visible[:, None, None], record=record)
    context = found.context.view(sentences, heads, beam, -1).transpose(1, 2).reshape(len(query), width)
    weights = None if found.weights is None else found.weights.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    return StepAttention(context, weights)
