"""The demo's data: numbers written in English words and in German words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from num2words import num2words

from saccade.data.reading.pair_files import Pair
from saccade.errors import SaccadeError

SMALL = 100  # every number below has a word or an ending of its own and is always trained on


class NumberSplit(NamedTuple):
    """Pairs for the three purposes, no number twice."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def number_pairs(*, train: int, valid: int, test: int, below: int, seed: int) -> NumberSplit:
    """English and German words of different numbers below `below`; each count of digits gets a like share."""
    known = always_trained(below)
    if train < len(known):
        raise SaccadeError(
            f"{train:,} numbers are too few to train on",
            do=f"ask for at least {len(known)}: those below {SMALL} and 10ⁿ",
        )
    if train + valid + test > below:
        raise SaccadeError(
            f"there are no {train + valid + test:,} different numbers below {below:,}",
            do="ask for fewer examples or raise the limit",
        )
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = draw(train + valid + test - len(known), below, generator)
    order = generator.permutation(len(drawn))
    shuffled = [drawn[place] for place in order]
    trained = [*known, *shuffled[valid + test :]]
    return NumberSplit(
        train=[number_pair(trained[place]) for place in generator.permutation(len(trained))],
        valid=[number_pair(number) for number in shuffled[:valid]],
        test=[number_pair(number) for number in shuffled[valid : valid + test]],
    )


def always_trained(below: int) -> list[int]:
    """The numbers that show every word alone: the small ones and the powers of ten."""
    powers = (10**exponent for exponent in range(2, len(str(below)) + 1))
    return [*range(min(SMALL, below)), *(power for power in powers if power < below)]


def draw(count: int, below: int, generator: np.random.Generator) -> list[int]:
    """Different numbers from 100 up, without the powers of ten; each count of digits gives a like share if it can."""
    starts = [10**exponent for exponent in range(2, len(str(below)) + 1)]
    ranges = [range(start + 1, min(10 * start, below)) for start in starts if start + 1 < below]
    drawn: list[int] = []
    for place, numbers in enumerate(sorted(ranges, key=len)):  # what a short range cannot give, the longer ones do
        share = -(-(count - len(drawn)) // (len(ranges) - place))
        chosen = generator.choice(len(numbers), size=min(share, len(numbers)), replace=False)
        drawn.extend(numbers[offset] for offset in chosen)
    return drawn


def number_pair(number: int) -> Pair:
    """One number in English and in German words."""
    return Pair(english(number), german(number))


def english(number: int) -> str:
    """The number in English words, without commas."""
    return str(num2words(number, lang="en")).replace(",", "")


def german(number: int) -> str:
    """The number in German words."""
    words = str(num2words(number, lang="de")).replace(",", "")
    return words.replace("einstausend", "eintausend")  # num2words 0.5 writes 101,000 as einhunderteinstausend
