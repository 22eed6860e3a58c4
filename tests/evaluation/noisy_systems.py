"""Outputs of two synthetic systems with known error rates, for tests of scores and of their significance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "under", "tree", "runs", "fast", "slowly", ",", ".", "and"]


class Systems(NamedTuple):
    baseline: list[str]
    system: list[str]
    references: list[list[str]]


def noisy_systems(count: int, *, several: bool = False, seed: int = 1) -> Systems:
    """Random references, and two systems: the first references with 30 % and 20 % of the words replaced."""
    generator = np.random.default_rng(seed)

    def sentence() -> list[str]:
        return [str(word) for word in generator.choice(WORDS, generator.integers(3, 12))]

    def noisy(words: list[str], rate: float) -> str:
        return " ".join(str(generator.choice(WORDS)) if generator.random() < rate else word for word in words)

    firsts = [sentence() for _ in range(count)]
    references = [
        [" ".join(first), *(noisy(first, 0.5) for _ in range(index % 3 if several else 0))]
        for index, first in enumerate(firsts)
    ]
    return Systems([noisy(first, 0.3) for first in firsts], [noisy(first, 0.2) for first in firsts], references)
