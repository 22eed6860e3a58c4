"""Attention of one new position per hypothesis to its KV cache and to the memory; kernels for inference only."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.ops.arguments import address, require_heads, require_integers, require_same_dtype_and_device, require_shape
from saccade.ops.attention_reference import masked_softmax, split_heads
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.kernel_library import kernel
from saccade.ops.kv_cache import KVCache, MemoryCache


class Window(NamedTuple):
    """The part of each sentence's memory that attention is restricted to."""

    starts: Tensor  # (B,) the first position
    counts: Tensor  # (B,) the number of positions
    longest: int  # the maximum number of positions of a window


class StepAttention(NamedTuple):
    """The context of one position per hypothesis and, if recorded, its attention weights."""

    context: Tensor  # (N, D)
    weights: Tensor | None  # (N, H, 1, keys)


def kv_cache_attention(qkv: Tensor, cache: KVCache, bias: Tensor, heads: int, *, record: bool = False) -> StepAttention:
    """Self-attention of one position, qkv (N, 3D), to a cache that ends with it; bias (3D,)."""
    op, width = "kv_cache_attention", bias.numel() // 3
    require_same_dtype_and_device(op, qkv=qkv, bias=bias, cache=cache.joined)
    require_shape(op, "bias", bias, 3 * width)
    require_heads(op, width, heads)
    require_shape(op, "qkv", qkv, None, 3 * width)
    if cache.joined is not None:
        require_shape(op, "cache", cache.joined, qkv.size(0), None, 2 * width)
        if not cache.joined.size(1):
            raise ValueError(f"{op}: the cache is empty")
        keys, values = (split_heads(x, heads) for x in cache.joined.chunk(2, -1))  # (N, H, t, d)
        query = split_heads((qkv[:, :width] + bias[:width])[:, None], heads)  # (N, H, 1, d)
        return attend_one(query, keys, values, None, record=record)
    steps = cache.steps.value
    check_steps(op, qkv, cache)
    if runs_on_inference_kernel(qkv):
        kept, origin = [step.contiguous() for step in steps], cache.origin.contiguous()
        query, bias = qkv.contiguous(), bias.contiguous()
        context = query.new_empty(len(query), width)
        weights = query.new_empty(len(query), heads, 1, len(kept)) if record else None
        pointers = (ctypes.c_void_p * len(kept))(*map(address, kept))
        sizes = len(query), heads, width // heads, len(kept)
        inputs = *map(address, (origin, query, bias)), address(context), address(weights)
        kernel(op, *sizes, ctypes.addressof(pointers), *inputs)
        return StepAttention(context, weights)
    return kv_cache_reference(qkv, steps, cache.origin, bias, heads, record=record)


def check_steps(op: str, qkv: Tensor, cache: KVCache) -> None:
    """Raise unless the steps have matching shapes and `origin` has valid row indices for every step."""
    steps, origin = cache.steps.value, cache.origin
    require_integers(op, qkv.device, origin=origin)
    require_shape(op, "origin", origin, qkv.size(0), len(steps))
    if not steps:
        raise ValueError(f"{op}: the cache is empty")
    for number, step in enumerate(steps):
        if step.dtype != qkv.dtype or step.device != qkv.device:
            raise TypeError(f"{op}: step {number} is {step.dtype} on {step.device}, qkv {qkv.dtype} on {qkv.device}")
        require_shape(op, "step", step, None, qkv.size(1))
    if origin.is_cpu:
        sizes = torch.tensor([len(step) for step in steps], device=origin.device)
        if bool(((origin < 0) | (origin >= sizes)).any()):
            raise IndexError(f"{op}: origin has a row index that an earlier step does not have")


def kv_cache_reference(
    qkv: Tensor, steps: Sequence[Tensor], origin: Tensor, bias: Tensor, heads: int, *, record: bool = False
) -> StepAttention:
    """The PyTorch reference: gather each hypothesis' keys and values, then attend."""
    lengths = torch.tensor([0, *(len(step) for step in steps[:-1])], device=origin.device)
    rows = origin + lengths.cumsum(0)  # (N, t)
    every = torch.cat(list(steps)).index_select(0, rows.flatten()).view(*rows.shape, bias.numel()) + bias  # (N, t, 3D)
    _, keys, values = (split_heads(x, heads) for x in every.chunk(3, -1))  # (N, H, t, d)
    query = split_heads((qkv + bias)[:, None].chunk(3, -1)[0], heads)  # (N, H, 1, d)
    return attend_one(query, keys, values, None, record=record)


def attend_one(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, record: bool) -> StepAttention:
    """One query (N, H, 1, d) per hypothesis to keys and values (N, H, t, d) where mask (N, 1, 1, t) is True."""
    if not record:
        context = F.scaled_dot_product_attention(query, keys, values, mask)  # (N, H, 1, d)
        return StepAttention(context.flatten(1), None)
    scores = query @ keys.transpose(-1, -2) / query.size(-1) ** 0.5  # (N, H, 1, t)
    weights = masked_softmax(scores, mask)
    return StepAttention((weights @ values).flatten(1), weights)


def memory_attention(
    query: Tensor,
    query_bias: Tensor,
    memory: MemoryCache,
    kv_bias: Tensor,
    heads: int,
    *,
    window: Window | None = None,
    record: bool = False,
) -> StepAttention:
    """Cross-attention of one position of N = B·W hypotheses, query (N, D), to the memory of their sentence.

    The W hypotheses of a sentence are consecutive rows. Recorded weights are (N, H, 1, S).
    """
    op, width, sentences = "memory_attention", query_bias.numel(), memory.counts.size(0)
    kv = memory.packed.value if memory.padded is None else memory.padded
    if kv is None or (memory.padded is None and memory.first is None):
        raise ValueError(f"{op}: the memory cache is empty")
    require_same_dtype_and_device(op, query=query, query_bias=query_bias, kv=kv, kv_bias=kv_bias)
    require_shape(op, "query_bias", query_bias, None)
    require_shape(op, "query", query, None, width)
    require_shape(op, "kv_bias", kv_bias, 2 * width)
    require_heads(op, width, heads)
    if memory.padded is None:
        require_shape(op, "kv", kv, None, 2 * width)
    else:
        require_shape(op, "kv", kv, sentences, memory.longest, 2 * width)
    if query.size(0) % max(1, sentences) or (query.size(0) and not sentences):
        raise ValueError(f"{op}: {query.size(0)} hypotheses of {sentences} sentences")
    check_memory(op, memory, window, query.device)
    if memory.first is not None and runs_on_inference_kernel(query) and not (window and record):
        first, counts = memory.first, memory.counts
        if window is not None:
            first, counts = first + window.starts, window.counts
        query, query_bias, value_bias, kv = (x.contiguous() for x in (query, query_bias, kv_bias[width:], kv))
        first, counts = first.contiguous(), counts.contiguous()
        context = torch.empty_like(query)
        weights = query.new_zeros(len(query), heads, 1, memory.longest) if record else None
        sizes = len(query), heads, width // heads, len(query) // max(1, sentences), memory.longest
        inputs = map(address, (first, counts, kv, query, query_bias, value_bias, context, weights))
        kernel(op, *sizes, *inputs)
        return StepAttention(context, weights)
    padded = pad_memory(kv, memory) + kv_bias if memory.padded is None else memory.padded
    return memory_reference(query + query_bias, padded, memory.counts, heads, window=window, record=record)


def check_memory(op: str, memory: MemoryCache, window: Window | None, device: torch.device) -> None:
    """Raise unless the positions of all sentences, and of their windows, are within the memory."""
    counts, first = memory.counts, memory.first if memory.padded is None else None
    parts = {"counts": counts}
    parts |= {} if first is None else {"first": first}
    parts |= {} if window is None else {"starts": window.starts, "window counts": window.counts}
    require_integers(op, device, **parts)
    for name, part in parts.items():
        require_shape(op, name, part, counts.size(0))
    if not counts.is_cpu:  # elsewhere this would synchronize
        return
    outside = (counts < 0) | (counts > memory.longest)
    if first is not None and memory.packed.value is not None:
        outside |= (first < 0) | (first > len(memory.packed.value) - counts)
    if window is not None:
        starts, inside = window.starts, window.counts
        outside |= (inside < 0) | (inside > window.longest) | (starts < 0) | (starts > counts - inside)
    if bool(outside.any()):
        raise IndexError(f"{op}: a sentence or its window has positions outside of the memory")


def pad_memory(kv: Tensor, memory: MemoryCache) -> Tensor:
    """A packed memory (M, 2D) as (B, S, 2D)."""
    positions = torch.arange(memory.longest, device=kv.device)
    assert memory.first is not None
    rows = torch.where(positions < memory.counts[:, None], memory.first[:, None] + positions, 0)
    found = kv.index_select(0, rows.flatten()) if len(kv) else kv.new_zeros(rows.numel(), kv.size(1))
    return found.view(*rows.shape, kv.size(1))


def memory_reference(
    query: Tensor, kv: Tensor, counts: Tensor, heads: int, *, window: Window | None = None, record: bool = False
) -> StepAttention:
    """The PyTorch reference: all hypotheses (N, D) of a sentence attend at once to its memory, kv (B, S, 2D)."""
    positions = torch.arange(kv.size(1), device=query.device).expand(kv.size(0), -1)  # (B, S)
    visible = positions < counts[:, None]
    if window is not None and not record:
        within = torch.arange(min(window.longest, kv.size(1)), device=query.device)
        positions = (window.starts[:, None] + within).clamp(max=kv.size(1) - 1)  # (B, window)
        kv = kv.gather(1, positions[:, :, None].expand(-1, -1, kv.size(2)))
        visible = within < window.counts[:, None]
    elif window is not None:
        after = positions - window.starts[:, None]
        visible = (after >= 0) & (after < window.counts[:, None])
    keys, values = (split_heads(x, heads) for x in kv.chunk(2, -1))  # (B, H, S, d)
    beam = query.size(0) // max(1, kv.size(0))
    queries = query.view(kv.size(0), beam, query.size(1))
    found = attend_one(split_heads(queries, heads), keys, values, visible[:, None, None], record=record)
    weights = None if found.weights is None else found.weights.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    context = found.context.view(kv.size(0), heads, beam, query.size(1) // heads).transpose(1, 2)
    return StepAttention(context.reshape(query.size(0), query.size(1)), weights)
