"""Scores of one sentence against one reference, between 0 and 1: what sequence-level training rewards.

Both count n-grams of 1 to 4 words; which words those are is for the caller to say. The BLEU of a report is that of a
whole corpus, in `scores`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

LONGEST = 4  # words of an n-gram

Words = Sequence[str]
Reward = Callable[[Words, Words], float]
"""From the words of an output and of its reference to a score between 0 and 1."""


def sentence_bleu(output: Words, reference: Words) -> float:
    """BLEU (Papineni et al. 2002) of one sentence, with one added to hits and totals of n-grams of two and more words.

    This is the smoothing of Lin and Och 2004 (ORANGE); sacreBLEU calls it add-k with k = 1. An
    output without a single right word has 0.
    """
    if not output or not reference:
        return float(len(output) == len(reference))
    logarithms = 0.0
    for length in range(1, LONGEST + 1):
        found, wanted = ngrams(output, length), ngrams(reference, length)
        added = int(length > 1)
        hits, total = matches(found, wanted) + added, found.total() + added
        if not hits:
            return 0.0
        logarithms += math.log(hits / total)
    brevity = min(0.0, 1 - len(reference) / len(output))
    return math.exp(logarithms / LONGEST + brevity)


def gleu(output: Words, reference: Words) -> float:
    """GLEU (Wu et al. 2016, section 5): the smaller of precision and recall over all n-grams of 1 to 4 words."""
    hits = outputs = references = 0
    for length in range(1, LONGEST + 1):
        found, wanted = ngrams(output, length), ngrams(reference, length)
        hits += matches(found, wanted)
        outputs += found.total()
        references += wanted.total()
    most = max(outputs, references)
    return hits / most if most else 1.0


REWARDS: Mapping[str, Reward] = {"gleu": gleu, "bleu": sentence_bleu}


def ngrams(words: Words, length: int) -> Counter[tuple[str, ...]]:
    """How often each run of so many words occurs."""
    return Counter(tuple(words[first : first + length]) for first in range(len(words) - length + 1))


def matches(found: Counter[tuple[str, ...]], wanted: Counter[tuple[str, ...]]) -> int:
    """How many n-grams have a partner: none is counted more often than it is wanted."""
    return sum(min(count, wanted[ngram]) for ngram, count in found.items() if ngram in wanted)
