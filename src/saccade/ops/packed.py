"""Packed sequences: the real positions of a padded batch (B, T, D), concatenated to (N, D) without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedLayout:
    """Where each sequence of a packed batch begins, and where each packed position is in the padded batch."""

    cu_seqlens: Tensor  # (B + 1,) int64, cumulative sequence lengths, from 0 to N
    indices: Tensor  # (N,) int64, position b·T + t in the padded batch
    shape: torch.Size  # (B, T) of the padded batch

    def __post_init__(self) -> None:
        cu_seqlens, indices = self.cu_seqlens, self.indices
        if cu_seqlens.dtype != torch.int64 or indices.dtype != torch.int64:
            raise TypeError("PackedLayout: cu_seqlens and indices must be torch.int64")
        if cu_seqlens.dim() != 1 or indices.dim() != 1 or len(self.shape) != 2 or len(cu_seqlens) != self.shape[0] + 1:
            raise ValueError(
                f"PackedLayout: cu_seqlens {tuple(cu_seqlens.shape)} and indices {tuple(indices.shape)} "
                f"do not describe a batch of shape {tuple(self.shape)}"
            )
        if cu_seqlens.device.type == "cpu":
            lengths = cu_seqlens.diff()
            if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != len(indices) or bool((lengths < 0).any()):
                raise ValueError("PackedLayout: cu_seqlens must rise from 0 to the number of indices")
            if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.shape.numel():
                raise IndexError(f"PackedLayout: an index is outside of the batch {tuple(self.shape)}")
            if len(lengths) and int(lengths.max()) > self.shape[1]:
                raise ValueError("PackedLayout: a sequence is longer than the padded batch")

    @classmethod
    def of(cls, mask: Tensor) -> PackedLayout:
        """The layout of the positions where mask (B, T) is True."""
        cu_seqlens = torch.zeros(mask.size(0) + 1, dtype=torch.int64, device=mask.device)
        torch.cumsum(mask.sum(1), 0, out=cu_seqlens[1:])
        return cls(cu_seqlens.contiguous(), mask.flatten().nonzero().squeeze(1), mask.shape)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...) to (N, ...)."""
        return x.flatten(0, 1).index_select(0, self.indices)

    def unpack(self, x: Tensor) -> Tensor:
        """(N, D) to (B, T, D), 0 on padding."""
        flat = x.new_zeros(self.shape.numel(), x.size(1)).index_copy(0, self.indices, x)
        return flat.view(*self.shape, -1)

    def mask(self) -> Tensor:
        """(B, T), True where a position is real."""
        flat = torch.zeros(self.shape.numel(), dtype=torch.bool, device=self.indices.device)
        return flat.index_fill(0, self.indices, True).view(self.shape)
