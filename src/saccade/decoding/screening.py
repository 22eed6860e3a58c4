"""Greedy search without computing all logits: an int8 output layer finds the largest (ops/argmax_int8.py)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saccade.interface import Product
from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.int8_linear import QuantizedMatrix, quantize, quantized_form

LEAST_ROWS = 32
"""With fewer rows a search is over before the output layer is quantized."""


class Screen:
    """An output layer in int8."""

    def __init__(self, weight: QuantizedMatrix, *, exact: bool = True) -> None:
        """Without `exact` the int8 logits decide."""
        self.weight = weight
        self.exact = exact

    def best(self, x: Tensor, suppressed: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The largest logit (N,) and its token (N,) of each row of x (N, D); -inf if all tokens are suppressed."""
        return argmax_int8(x, self.weight, suppressed, exact=self.exact)


def screen_of(product: Product | None) -> Screen | None:
    """The int8 form of an output layer, if there are kernels for it and enough rows."""
    if product is None or len(product.rows) < LEAST_ROWS:
        return None
    weight = quantize(product.table.detach(), product.bias)
    return None if weight is None else Screen(weight, exact=quantized_form(product.table) is None)
