"""Packed sequences: the real positions of a padded batch (B, T, D), concatenated to (N, D) without padding."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import torch
from torch import Tensor

from saccade.ops.arguments import require_integers, require_mask, require_shape


@dataclass(frozen=True)
class PackedLayout:
    """The offsets of the sequences in a packed batch, and the index of each position in the padded batch.

    Without `indices` the batch keeps its padding and N = B·T: traced or compiled graphs need shapes that do not depend
    on values.
    """

    cu_seqlens: Tensor  # (B + 1,) int64, cumulative sequence lengths, from 0 to N
    indices: Tensor | None  # (N,) int64, position b·T + t in the padded batch
    mask: Tensor  # (B, T), True where a position is real
    checked: InitVar[bool] = False  # True skips the check, which takes 30 µs

    def __post_init__(self, checked: bool) -> None:
        if not checked:
            self.check()

    def check(self) -> None:
        """Raise unless cu_seqlens and indices are those of the mask."""
        cu_seqlens, indices, mask = self.cu_seqlens, self.indices, self.mask
        require_integers("PackedLayout", mask.device, cu_seqlens=cu_seqlens)
        require_mask("PackedLayout", mask, None, None, device=mask.device)
        require_shape("PackedLayout", "cu_seqlens", cu_seqlens, len(mask) + 1)
        if indices is not None:
            require_integers("PackedLayout", mask.device, indices=indices)
            require_shape("PackedLayout", "indices", indices, None)
        if not mask.is_cpu:  # elsewhere this would synchronize
            return
        lengths = torch.full_like(cu_seqlens[1:], mask.size(1)) if indices is None else mask.sum(1)
        if int(cu_seqlens[0]) != 0 or not torch.equal(cu_seqlens.diff(), lengths):
            raise ValueError("PackedLayout: cu_seqlens does not match the mask")
        if indices is not None and not torch.equal(indices, mask.flatten().nonzero().squeeze(1)):
            raise ValueError("PackedLayout: indices do not match the mask")

    @classmethod
    def of(cls, mask: Tensor) -> PackedLayout:
        """The layout of the positions where mask (B, T) is True."""
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise TypeError(f"PackedLayout: the mask is {mask.dtype} {tuple(mask.shape)}, expected bool (B, T)")
        if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[no-untyped-call]
            cu_seqlens = torch.arange(mask.size(0) + 1, device=mask.device) * mask.size(1)
            return cls(cu_seqlens, None, mask, checked=True)
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
