"""A shuffle of any size without memory: where each position goes is computed, never stored.

A Feistel network over two digits of mixed radix (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains",
section 5) permutes a range that is hardly larger than asked for; what lands outside is sent through again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8  # four for each digit
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads consecutive numbers

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]


def permute(
    positions: Indices, size: int, key: int | Sequence[int], *, variants: Indices | int = 0
) -> NDArray[np.int64]:
    """Where a keyed shuffle of `range(size)` sends the given positions; each variant of a key is another shuffle."""
    keys: Words = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).astype(np.uint64, copy=False)
    values = np.asarray(positions, dtype=np.uint64)
    offsets = scramble(np.broadcast_to(np.asarray(variants, dtype=np.uint64), values.shape) * ODD)
    high = math.isqrt(max(size - 1, 0)) + 1  # high * low is at least the size, and at most one row of `high` more
    low = -(-size // high)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = exchange(values[outside], high, low, keys, offsets[outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def exchange(values: Words, high: int, low: int, keys: Words, offsets: Words) -> Words:
    """One bijection of `range(high * low)`: in turn, each digit is shifted by a hash of the other."""
    first, second = values // np.uint64(low), values % np.uint64(low)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            first = (first + scramble(second * ODD + key + offsets) % np.uint64(high)) % np.uint64(high)
        else:
            second = (second + scramble(first * ODD + key + offsets) % np.uint64(low)) % np.uint64(low)
    return first * np.uint64(low) + second


def scramble(values: Words) -> Words:
    """A hash of 64 bits (the finisher of SplitMix64, Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
