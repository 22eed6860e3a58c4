"""Weights in bytes (kernels/bytes.c): products with them take a quarter of the time, and are nearly the same.

A weight has a scale for each of its rows, an input likewise, so that no row depends on its neighbours. Models know
nothing of it: a weight has its form in bytes beside it, which the products of `products.py` and `packed.py` take, until
the weight is changed. (What writes to `weight.data` goes unnoticed.) A copy of a model has none.
"""

from __future__ import annotations

import ctypes
from typing import cast

import torch
from torch import Tensor, nn

from saccade.csrc.abi import Int8Weight
from saccade.csrc.library import kernel, library, usable

BESIDE = "in_bytes"  # the attribute of a weight that is multiplied by its bytes
SCREEN = "screen"  # of one whose largest product is looked for among its bytes (decoding/screening.py)

WIDEST = 65536
"""The most entries of a row: as many products of bytes fit into a sum of 32 bits."""


class InBytes:
    """A weight (E, D) in bytes, with its bias (E,), if there is one."""

    def __init__(self, weight: Tensor, bias: Tensor | None, panel: int, panels: int, depth: int) -> None:
        """A panel has so many outputs; the number of panels, and the width, come in multiples of the others."""
        outs, ins = weight.shape
        count = -(-outs // (panel * panels)) * panels
        numbers = torch.empty(2 * count * (panel + 1))  # scales and biases of all outputs, two bounds of each panel
        packed = torch.empty(count * panel * -(-ins // depth) * depth, dtype=torch.uint8)
        self.kept = weight, bias, numbers, packed  # the structure has their addresses
        self.outs, self.ins = weight.shape
        self.version = version_of(weight)
        firsts = 0, count * panel, 2 * count * panel, 2 * count * panel + count
        places = weight.data_ptr(), None if bias is None else bias.data_ptr(), packed.data_ptr()
        self.structure = Int8Weight(outs, ins, *places, *(numbers[first:].data_ptr() for first in firsts))
        kernel("int8_pack", ctypes.byref(self.structure))

    def product(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., E), without the bias."""
        if x.size(-1) != self.ins:
            raise ValueError(f"rows of {x.size(-1)} by a weight for {self.ins}")
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outs)
        rows = x.numel() // x.size(-1)
        kernel("int8_linear", rows, x.data_ptr(), ctypes.byref(self.structure), out.data_ptr())
        return out


def has_bytes() -> bool:
    """Whether this processor has products of bytes, and we kernels for them."""
    return library() is not None and sizes()[0] > 0


def sizes() -> tuple[int, int, int]:
    """The outputs of a panel, and of what the number of panels and the width are multiples; 0 without such products."""
    found = [ctypes.c_int64() for _ in range(3)]
    kernel("int8_panel_sizes", *map(ctypes.byref, found))
    panel, panels, depth = (size.value for size in found)
    return panel, panels, depth


def in_bytes(weight: Tensor, bias: Tensor | None = None) -> InBytes | None:
    """The form in bytes of a weight (E, D), if it can have one."""
    plain = weight.dim() == 2 and weight.numel() > 0 and weight.is_contiguous() and weight.size(1) <= WIDEST
    if not plain or not usable(weight) or not has_bytes():
        return None
    return InBytes(weight, bias, *sizes())


def version_of(weight: Tensor) -> tuple[int, int]:
    """Another one after every change."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def give_bytes(model: nn.Module) -> int:
    """Put beside every weight of a model its form in bytes; how many have one now."""
    given = 0
    for weight in model.parameters():
        found = in_bytes(weight.detach())
        if found is not None:
            setattr(weight, BESIDE, found)
            given += 1
    return given


def bytes_beside(weight: Tensor, attribute: str = BESIDE) -> InBytes | None:
    """The form in bytes that a weight was given, unless it was changed since."""
    found = cast("InBytes | None", getattr(weight, attribute, None))
    return None if found is None or found.version != version_of(weight) else found


def keep_screen(weight: Tensor) -> None:
    """Put the form in bytes beside a weight that is still multiplied in floats."""
    setattr(weight, SCREEN, in_bytes(weight.detach()))
