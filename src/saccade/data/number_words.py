"""Synthetic data of the demo: numbers in English words and in German words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from num2words import num2words

from saccade.data.reading.pair_files import Pair
from saccade.errors import SaccadeError

ALWAYS_TRAINED_BELOW = 100  # smaller numbers have irregular names, so all of them are in the training data


class NumberSplit(NamedTuple):
    """Training, validation and test pairs; no number occurs twice."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def number_pairs(*, train: int, valid: int, test: int, below: int, seed: int) -> NumberSplit:
    """Draw English-German pairs of distinct numbers below `below`, with about equally many of each digit count."""
    known = always_trained(below)
    if train < len(known):
        raise SaccadeError(
            f"{train:,} training numbers are too few",
            hint=f"use at least {len(known)}: all numbers below {ALWAYS_TRAINED_BELOW} and the powers of ten",
        )
    if train + valid + test > below:
        raise SaccadeError(
            f"there are fewer than {train + valid + test:,} numbers below {below:,}",
            hint="use fewer examples or raise the limit",
        )
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = draw_numbers(train + valid + test - len(known), below, generator)
    order = generator.permutation(len(drawn))
    shuffled = [drawn[index] for index in order]
    trained = [*known, *shuffled[valid + test :]]
    return NumberSplit(
        train=[number_pair(trained[index]) for index in generator.permutation(len(trained))],
        valid=[number_pair(number) for number in shuffled[:valid]],
        test=[number_pair(number) for number in shuffled[valid : valid + test]],
    )


def always_trained(below: int) -> list[int]:
    """Return small numbers and powers of ten, which show every number word alone."""
    powers = (10**exponent for exponent in range(2, len(str(below)) + 1))
    return [*range(min(ALWAYS_TRAINED_BELOW, below)), *(power for power in powers if power < below)]


def draw_numbers(count: int, below: int, generator: np.random.Generator) -> list[int]:
    """Draw distinct numbers of at least 100, without powers of ten; if possible, equally many of each digit count."""
    starts = [10**exponent for exponent in range(2, len(str(below)) + 1)]
    ranges = [range(start + 1, min(10 * start, below)) for start in starts if start + 1 < below]
    drawn: list[int] = []
    for index, numbers in enumerate(sorted(ranges, key=len)):  # longer ranges make up for shorter ones
        share = -(-(count - len(drawn)) // (len(ranges) - index))
        chosen = generator.choice(len(numbers), size=min(share, len(numbers)), replace=False)
        drawn.extend(numbers[offset] for offset in chosen)
    return drawn


def number_pair(number: int) -> Pair:
    """A number in English words and in German words."""
    return Pair(english(number), german(number))


def english(number: int) -> str:
    """A number in English words, without commas."""
    return str(num2words(number, lang="en")).replace(",", "")


def german(number: int) -> str:
    """A number in German words."""
    words = str(num2words(number, lang="de")).replace(",", "")
    return words.replace("einstausend", "eintausend")  # a bug of num2words 0.5: einhunderteinstausend
