"""Packed sequences: the real positions of a padded batch (B, T, D), concatenated to (N, D) without padding."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedLayout:
    """The offsets of the sequences in a packed batch, and the index of each position in the padded batch.

    Without `indices` the batch keeps its padding and N = B·T: traced or compiled graphs need shapes that do not depend
    on values.
    """

    cu_seqlens: Tensor  # (B + 1,) int64, cumulative sequence lengths, from 0 to N
    indices: Tensor | None  # (N,) int64, position b·T + t in the padded batch
    mask: Tensor  # (B, T), True where a position is real
    checked: InitVar[bool] = False  # whether the caller knows that these fit each other: checks take 30 µs

    def __post_init__(self, checked: bool) -> None:
        cu_seqlens, indices, mask = self.cu_seqlens, self.indices, self.mask
        if indices is None or checked:
            return
        if cu_seqlens.dtype != torch.int64 or indices.dtype != torch.int64 or mask.dtype != torch.bool:
            raise TypeError("PackedLayout: cu_seqlens and indices must be torch.int64, mask torch.bool")
        if cu_seqlens.dim() != 1 or indices.dim() != 1 or mask.dim() != 2 or len(cu_seqlens) != len(mask) + 1:
            raise ValueError(
                f"PackedLayout: cu_seqlens {tuple(cu_seqlens.shape)} and indices {tuple(indices.shape)} "
                f"do not describe a batch of shape {tuple(mask.shape)}"
            )
        if not cu_seqlens.device == indices.device == mask.device:
            raise TypeError("PackedLayout: cu_seqlens, indices and mask are on different devices")
        if mask.is_cpu:  # elsewhere this would synchronize
            consistent = int(cu_seqlens[0]) == 0 and torch.equal(cu_seqlens.diff(), mask.sum(1))
            if not consistent or not torch.equal(indices, mask.flatten().nonzero().squeeze(1)):
                raise ValueError("PackedLayout: cu_seqlens or indices do not match the mask")

    @classmethod
    def of(cls, mask: Tensor) -> PackedLayout:
        """The layout of the positions where mask (B, T) is True."""
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise TypeError(f"PackedLayout: the mask is {mask.dtype} {tuple(mask.shape)}, expected bool (B, T)")
        if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[no-untyped-call]
            return cls(torch.arange(mask.size(0) + 1, device=mask.device) * mask.size(1), None, mask)
        cu_seqlens = torch.zeros(mask.size(0) + 1, dtype=torch.int64, device=mask.device)
        torch.cumsum(mask.sum(1), 0, out=cu_seqlens[1:])
        return cls(cu_seqlens, mask.flatten().nonzero().squeeze(1), mask, checked=True)

    @property
    def total(self) -> int:
        """N, the number of packed positions."""
        return self.mask.size(0) * self.mask.size(1) if self.indices is None else self.indices.size(0)

    @property
    def longest(self) -> int:
        """T, the length of the padded batch."""
        return self.mask.size(1)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...) to (N, ...)."""
        if x.shape[:2] != self.mask.shape:
            raise ValueError(f"PackedLayout: x has shape {tuple(x.shape)}, the mask {tuple(self.mask.shape)}")
        flat = x.flatten(0, 1)
        return flat if self.indices is None else flat.index_select(0, self.indices)

    def unpack(self, x: Tensor) -> Tensor:
        """(N, D) to (B, T, D), 0 on padding."""
        if x.dim() != 2 or (self.indices is not None and len(x) != len(self.indices)):
            raise ValueError(f"PackedLayout: x has shape {tuple(x.shape)}, expected ({self.total}, *)")
        shape = self.mask.size(0), self.mask.size(1), x.size(1)
        if self.indices is None:
            return x.view(shape).masked_fill(~self.mask[:, :, None], 0.0)
        return x.new_zeros(shape[0] * shape[1], shape[2]).index_copy(0, self.indices, x).view(shape)

    def positions(self) -> Tensor:
        """(N,) the position of each packed element in the padded sequence."""
        every = torch.arange(self.mask.size(1), device=self.mask.device)
        return self.pack(every.expand(self.mask.size(0), -1))
