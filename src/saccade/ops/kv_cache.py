"""The KV cache of a decoder layer: projections of earlier target positions, and keys and values of the memory.

Both caches have two forms. The kernels read the projections in the tensors of the steps that computed them: `origin`
has the index of each hypothesis at each earlier step, so beam search reorders indices and never copies keys or values.
The reference reads one batch-first tensor of keys and values. Neither form is overwritten: a state can be copied, and
continued in several ways.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from saccade.interface import Shared
from saccade.ops.arguments import require_same_dtype_and_device, require_shape
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.packed import PackedLayout


class KVCache(NamedTuple):
    """Projections of the earlier positions of N hypotheses in one layer."""

    origin: Tensor  # (N, t) the index of the hypothesis at each earlier step, for the kernel
    steps: Shared[tuple[Tensor, ...]]  # t times (N at that step, 3D): projections without bias, for the kernel
    joined: Tensor | None = None  # (N, t, 2D) keys and values with their bias, for the reference
    dropped: int = 0  # positions that the window of the cache has left behind

    @classmethod
    def empty(cls, hypotheses: int, like: Tensor) -> KVCache:
        """The cache before the first position, for projections like this tensor (..., D)."""
        origin = torch.empty(hypotheses, 0, dtype=torch.int64, device=like.device)
        joined = None if runs_on_inference_kernel(like) else like.new_empty(hypotheses, 0, 2 * like.size(-1))
        return cls(origin, Shared(()), joined)

    @property
    def cached(self) -> int:
        """t, the number of positions in the cache."""
        return self.origin.size(1) if self.joined is None else self.joined.size(1)

    @property
    def position(self) -> int:
        """The number of earlier positions: the position of the next token."""
        return self.dropped + self.cached

    def append(self, qkv: Tensor, bias: Tensor, window: int | None = None) -> KVCache:
        """The cache with one more position, qkv (N, 3D), bias (3D,); with a window, the last `window` positions."""
        if bias.dim() != 1 or qkv.shape != (self.origin.size(0), bias.size(0)):
            shapes = f"qkv {tuple(qkv.shape)} and bias {tuple(bias.shape)}"
            raise ValueError(f"KVCache.append: {shapes} for {self.origin.size(0)} hypotheses")
        if window is not None and window < 1:
            raise ValueError(f"KVCache.append: a window of {window} positions")
        last = slice(None) if window is None else slice(-window, None)
        if self.joined is not None:
            width = bias.size(0) // 3
            added = qkv[:, width:] + bias[width:]  # (N, 2D)
            joined = torch.cat([self.joined, added[:, None]], 1)[:, last]
            return KVCache(self.origin, self.steps, joined, self.position + 1 - joined.size(1))
        own = torch.arange(qkv.size(0), device=self.origin.device)[:, None]
        origin = torch.cat([self.origin, own], 1)[:, last]
        steps = (*self.steps.value, qkv)[last]
        return KVCache(origin, Shared(steps), None, self.position + 1 - len(steps))


class MemoryCache(NamedTuple):
    """Keys and values of the memory in one layer."""

    counts: Tensor  # (B,) the length of each sentence
    longest: int  # S, the padded length of the memory
    first: Tensor | None  # (B,) the first packed position of each sentence, for the kernel
    packed: Shared[Tensor | None]  # (M, 2D) keys and values without bias, for the kernel
    padded: Tensor | None  # (B, S, 2D) keys and values with their bias, for the reference

    @classmethod
    def of(cls, kv: Tensor, bias: Tensor, layout: PackedLayout) -> MemoryCache:
        """The cache of a packed memory, kv (M, 2D) without its bias (2D,)."""
        require_same_dtype_and_device("MemoryCache.of", kv=kv, bias=bias)
        require_shape("MemoryCache.of", "bias", bias, None)
        require_shape("MemoryCache.of", "kv", kv, layout.total, bias.size(0))
        counts, longest = layout.mask.sum(1), layout.longest
        if runs_on_inference_kernel(kv):
            return cls(counts, longest, layout.cu_seqlens[:-1], Shared(kv), None)
        if layout.indices is not None:  # real positions first: the mask may have padding between them
            layout = PackedLayout.of(torch.arange(longest, device=kv.device) < counts[:, None])
        return cls(counts, longest, None, Shared(None), layout.unpack(kv + bias))
