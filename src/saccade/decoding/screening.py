"""Greedy search without computing all logits: an int8 output layer finds the largest (ops/argmax_int8.py)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saccade.interface import OutputProjection
from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.int8_linear import QuantizedMatrix, int8_copy, quantize

MIN_ROWS = 32
"""The minimum number of rows: quantization takes longer than a search over fewer rows."""


class Int8Argmax:
    """An int8 output layer that finds the largest logit of each row."""

    def __init__(self, weight: QuantizedMatrix, *, exact: bool = True) -> None:
        """If `exact` is False, return the argmax of the int8 logits, without the float32 check."""
        self.weight = weight
        self.exact = exact

    def best(self, x: Tensor, suppressed: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the largest logit (N,) and its token (N,) for each row of x (N, D); -inf if all are suppressed."""
        return argmax_int8(x, self.weight, suppressed, exact=self.exact)


def quantize_for_screening(projection: OutputProjection | None) -> Int8Argmax | None:
    """Quantize an output layer for screening; None without kernels, or with too few rows to gain from it."""
    if projection is None or len(projection.inputs) < MIN_ROWS:
        return None
    weight = quantize(projection.weight.detach(), projection.bias)
    return None if weight is None else Int8Argmax(weight, exact=int8_copy(projection.weight) is None)
