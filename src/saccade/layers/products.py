"""Linear maps of any number of rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from saccade.csrc.library import for_inference, kernel
from saccade.layers.in_bytes import bytes_beside

FEW = 8
"""Up to so many rows our own product is faster; in decoding one sentence several times as fast."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., D) · weight (E, D)^T + bias (E,)."""
    rows, beside = x.numel() // x.size(-1), bytes_beside(weight)
    if beside is not None and for_inference(x):
        out = beside.product(x)
        return out if bias is None else out.add_(bias)
    if not 0 < rows <= FEW or not for_inference(x) or not x.is_contiguous():
        return F.linear(x, weight, bias)
    out = x.new_empty(*x.shape[:-1], len(weight))
    places = x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr()
    kernel("linear", rows, x.size(-1), len(weight), *places)
    return out
