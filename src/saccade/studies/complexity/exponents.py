"""How a cost grows: the exponent of a power law, by least squares in logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping

OCTAVES = 3
"""Exponents are those of the longest lengths, so many doublings: below, constant costs hide the law."""


def exponent(costs: Mapping[int, float]) -> float | None:
    """The slope of log cost over log size; None with fewer than two sizes, or where a cost is not positive."""
    if len(costs) < 2 or min(costs.values()) <= 0:
        return None
    sizes = [math.log(size) for size in costs]
    values = [math.log(cost) for cost in costs.values()]
    middle, mean = sum(sizes) / len(sizes), sum(values) / len(values)
    spread = sum((size - middle) ** 2 for size in sizes)
    return sum((size - middle) * (value - mean) for size, value in zip(sizes, values, strict=True)) / spread


def last_octaves(costs: Mapping[int, float], octaves: int = OCTAVES) -> dict[int, float]:
    """The sizes of the last doublings: from the largest down to a 2^octaves-th of it."""
    largest = max(costs, default=0)
    return {size: cost for size, cost in sorted(costs.items()) if size * 2**octaves >= largest}
