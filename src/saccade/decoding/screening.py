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

from saccade.csrc.library import kernel, usable
from saccade.interface import Product
from saccade.layers.in_bytes import SCREEN, InBytes, bytes_beside, in_bytes

MANY = 32
"""With fewer rows a search is over before the table is in bytes."""


class Screen:
    """An output layer in bytes."""

    def __init__(self, table: InBytes, *, exactly: bool = True) -> None:
        """If not `exactly`, the token is the one that the bytes alone give."""
        self.table = table
        self.exactly = exactly

    def best(self, rows: Tensor, never: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of each row (N, D) the largest logit (N,) and its token (N,), those in `never` left out; -inf if none is."""
        rows, forbidden = rows.contiguous(), torch.tensor(list(never), dtype=torch.int64)
        values, tokens = rows.new_empty(len(rows)), torch.empty(len(rows), dtype=torch.int64)
        places = self.exactly, len(forbidden), forbidden.data_ptr(), values.data_ptr(), tokens.data_ptr()
        kernel("argmax_int8", len(rows), rows.data_ptr(), ctypes.byref(self.table.structure), *places)
        return values, tokens


def screen_of(product: Product | None) -> Screen | None:
    """The output layer in bytes, if there are kernels for it, and rows enough."""
    if product is None or len(product.rows) < MANY or not usable(product.rows):
        return None
    kept = bytes_beside(product.table, SCREEN) if product.bias is None else None
    table = kept or in_bytes(product.table, product.bias)
    return None if table is None else Screen(table, exactly=bytes_beside(product.table) is None)
