"""Sentence-level BLEU and GLEU, between 0 and 1: the rewards of sequence-level training.

Both count n-grams of 1 to 4 words; the caller splits the text into words. Corpus BLEU is in `metrics.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

MAX_ORDER = 4  # of n-grams

Words = Sequence[str]
Reward = Callable[[Words, Words], float]
"""A function from the words of an output and of its reference to a score between 0 and 1."""


def sentence_bleu(output: Words, reference: Words) -> float:
    """Return BLEU (Papineni et al. 2002) of one sentence, with add-one smoothing of n-grams of two and more words.

    The smoothing is that of Lin and Och 2004 (ORANGE), add-k with k = 1 in sacreBLEU. An output without a matching word
    scores 0.
    """
    if not output or not reference:
        return float(len(output) == len(reference))
    logarithms = 0.0
    for length in range(1, MAX_ORDER + 1):
        found, expected = ngrams(output, length), ngrams(reference, length)
        added = int(length > 1)
        hits, total = matches(found, expected) + added, found.total() + added
        if not hits:
            return 0.0
        logarithms += math.log(hits / total)
    brevity = min(0.0, 1 - len(reference) / len(output))
    return math.exp(logarithms / MAX_ORDER + brevity)


def gleu(output: Words, reference: Words) -> float:
    """Return GLEU (Wu et al. 2016, section 5): the smaller of precision and recall over n-grams of 1 to 4 words."""
    hits = outputs = references = 0
    for length in range(1, MAX_ORDER + 1):
        found, expected = ngrams(output, length), ngrams(reference, length)
        hits += matches(found, expected)
        outputs += found.total()
        references += expected.total()
    most = max(outputs, references)
    return hits / most if most else 1.0


REWARDS: Mapping[str, Reward] = {"gleu": gleu, "bleu": sentence_bleu}


def ngrams(words: Words, length: int) -> Counter[tuple[str, ...]]:
    """Return the counts of all n-grams of a length."""
    return Counter(tuple(words[first : first + length]) for first in range(len(words) - length + 1))


def matches(found: Counter[tuple[str, ...]], expected: Counter[tuple[str, ...]]) -> int:
    """Return the number of matching n-grams, each clipped to its count in the reference."""
    return sum(min(count, expected[ngram]) for ngram, count in found.items() if ngram in expected)
