"""A pseudorandom permutation of any size in constant memory: each value is computed, no table is stored.

A Feistel network over two digits of mixed radix (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains",
section 5) permutes a slightly larger range; values outside the range are permuted again (cycle walking).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8  # four for each digit
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: spreads consecutive integers

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]


def permute(
    positions: Indices, size: int, key: int | Sequence[int], *, variants: Indices | int = 0
) -> NDArray[np.int64]:
    """Map `positions` by a permutation of `range(size)`; each (key, variant) gives a different permutation."""
    keys: Words = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).astype(np.uint64, copy=False)
    values = np.asarray(positions, dtype=np.uint64)
    offsets = mix_bits(np.broadcast_to(np.asarray(variants, dtype=np.uint64), values.shape) * GOLDEN)
    high = math.isqrt(max(size - 1, 0)) + 1  # size <= high * low < size + high
    low = -(-size // high)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = feistel(values[outside], high, low, keys, offsets[outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def feistel(values: Words, high: int, low: int, keys: Words, offsets: Words) -> Words:
    """Apply a bijection of `range(high * low)`: each round adds to one digit a hash of the other."""
    first, second = values // np.uint64(low), values % np.uint64(low)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            first = (first + mix_bits(second * GOLDEN + key + offsets) % np.uint64(high)) % np.uint64(high)
        else:
            second = (second + mix_bits(first * GOLDEN + key + offsets) % np.uint64(low)) % np.uint64(low)
    return first * np.uint64(low) + second


def mix_bits(values: Words) -> Words:
    """Hash 64-bit words (the finalizer of SplitMix64, Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
