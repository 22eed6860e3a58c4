"""The most probable token of each row without all of its logits (kernels/screening.c).

Greedy search wants the largest logit alone: no softmax, and hardly any of the others. The output layer in bytes shows
roughly how large each is and how far off that may be at most; only the few that could be the largest are then made
from floats. The token is the one that all logits would have given, up to the rounding of float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.interface import Product
from saccade.kernels import kernel, usable
from saccade.kernels.screening import ScreenedTable

MANY = 32
"""With fewer rows a search is over before the table is in bytes."""


class Screen:
    """An output layer in bytes."""

    def __init__(self, table: Tensor, bias: Tensor | None, tokens: int, panels: int, depth: int) -> None:
        """`table` (V, D), `bias` (V,); a panel has so many tokens, and the others come in multiples of these."""
        vocabulary, width = table.shape
        count = -(-vocabulary // (tokens * panels)) * panels
        numbers = table.new_empty(2 * count * (tokens + 1))  # scales and biases of all tokens, two bounds of each panel
        self.kept = table, bias, numbers, torch.empty(count * tokens * -(-width // depth) * depth, dtype=torch.uint8)
        firsts = 0, count * tokens, 2 * count * tokens, 2 * count * tokens + count
        places = table.data_ptr(), None if bias is None else bias.data_ptr(), self.kept[-1].data_ptr()
        self.structure = ScreenedTable(vocabulary, width, *places, *(numbers[first:].data_ptr() for first in firsts))
        kernel("screen_pack", ctypes.byref(self.structure))

    def best(self, rows: Tensor, never: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of each row (N, D) the largest logit (N,) and its token (N,), those in `never` left out; -inf if none is."""
        rows, forbidden = rows.contiguous(), torch.tensor(list(never), dtype=torch.int64)
        values, tokens = rows.new_empty(len(rows)), torch.empty(len(rows), dtype=torch.int64)
        places = len(forbidden), forbidden.data_ptr(), values.data_ptr(), tokens.data_ptr()
        kernel("screen_best", len(rows), rows.data_ptr(), ctypes.byref(self.structure), *places)
        return values, tokens


def screen_of(product: Product | None) -> Screen | None:
    """The output layer in bytes, if there are kernels for it, and rows enough."""
    if product is None or len(product.rows) < MANY or not usable(product.rows):
        return None
    if not product.table.is_contiguous() or not usable(product.table):
        return None
    tokens, panels, depth = (ctypes.c_int64() for _ in range(3))
    kernel("screen_sizes", *(ctypes.byref(size) for size in (tokens, panels, depth)))
    if not tokens.value:
        return None
    return Screen(product.table, product.bias, tokens.value, panels.value, depth.value)
