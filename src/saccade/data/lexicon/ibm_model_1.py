"""Word translation probabilities: IBM Model 1, trained on parallel text by expectation maximization.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1. The probability of a target t of m
words given a source s of l words, with the empty word as s_0, is (equation 16, without the constant of the length)

    P(t | s) = prod_j  1 / (l + 1)  sum_i  p(t_j | s_i)

and an iteration sets p(t | s) to the share of t in the expected number of words that s was translated by (equations 14
and 17). The likelihood never falls.

Departures: only word pairs (links) that co-occur have a probability, and of these only the MAX_LINKS most frequent, so
that memory is bounded. The links are fixed before the first iteration, so the likelihood still never falls. The empty
word keeps all its links: every target word has at least one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from saccade.data.config import Normalization
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import require_reiterable
from saccade.errors import SaccadeError

MAX_WORDS = 1_000_000  # per side
MAX_LINKS = 8_000_000  # word pairs that have a probability; 24 bytes each
MAX_PENDING = 2_000_000  # counted links in the buffer before they are merged
LINKS_AT_ONCE = 500_000  # links per batch
MAX_SENTENCE_WORDS = 256  # words; longer pairs are skipped: they have many links with little information
EMPTY_WORD = 0  # the id of the empty source word

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Batch(NamedTuple):
    """Pairs as packed sequences of word ids; each source begins with the empty word."""

    source: Integers
    source_lengths: Integers
    target: Integers
    target_lengths: Integers


class Links(NamedTuple):
    """All combinations of a source word and a target word of one pair, over the pairs of a batch."""

    key: Integers  # (N,) source id * number of target words + target id
    token: Integers  # (N,) the target position in the batch, 0 … M-1, ascending
    choices: Integers  # (M,) the number of links of each target position: l + 1


class WordPair(NamedTuple):
    """A source word and a translation of it."""

    source: str
    target: str
    probability: float  # p(target | source)


class TranslationTable(NamedTuple):
    """The translation probabilities of all links."""

    source_words: list[str]  # by id; id 0 is the empty word
    target_words: list[str]
    keys: Integers  # (K,) source id * number of target words + target id, ascending
    probabilities: Floats  # (K,)
    log_likelihoods: list[float]  # log-likelihood of the data before each iteration

    def best(self, count: int, min_probability: float) -> list[WordPair]:
        """The `count` most probable target words of each source word, sorted by source word, best first."""
        source, target = np.divmod(self.keys, len(self.target_words))
        probable = (self.probabilities >= min_probability) & (self.probabilities > 0)
        likely = np.flatnonzero(probable & (source != EMPTY_WORD))
        order = likely[np.lexsort((target[likely], -self.probabilities[likely], source[likely]))]
        first = np.searchsorted(source[order], source[order])  # start of the group with the same source word
        chosen = order[np.arange(len(order)) - first < count]
        found = [
            WordPair(self.source_words[s], self.target_words[t], p)
            for s, t, p in zip(
                source[chosen].tolist(), target[chosen].tolist(), self.probabilities[chosen].tolist(), strict=True
            )
        ]
        return sorted(found, key=lambda pair: pair.source)  # stable: best first


def words_of(text: str, normalization: Normalization | None) -> list[str]:
    """Split a text into words, as the word tokenizer does; with normalization None, split at single spaces."""
    return text.split(" ") if normalization is None else normalize(text, normalization).split()


def learn_translations(
    pairs: Iterable[Pair],
    *,
    iterations: int = 5,
    normalization: Normalization | None = "nfc",
    progress: Callable[[int, float], None] = lambda iteration, log_likelihood: None,
) -> TranslationTable:
    """Learn p(target word | source word) deterministically.

    `pairs` is iterated several times and never held in memory: pass a list or a re-iterable. `progress` is called with
    the number of each iteration, from 1, and the mean log-likelihood per target word before it.
    """
    pairs = require_reiterable(pairs)
    source_words, target_words = count_words(pairs, normalization)
    sentences = SentenceBatches(pairs, ["", *source_words], target_words, normalization)
    keys = count_links(sentences)
    source = keys // len(target_words)
    probabilities = normalize_counts(np.ones(len(keys)), source)
    log_likelihoods: list[float] = []
    for iteration in range(1, iterations + 1):
        expected = np.zeros(len(keys))
        log_likelihood, tokens = 0.0, 0
        for batch in sentences:
            links = links_of(batch, len(target_words))
            log_likelihood += add_expected_counts(links, keys, probabilities, expected)
            tokens += len(links.choices)
        log_likelihoods.append(log_likelihood)
        progress(iteration, log_likelihood / max(1, tokens))
        probabilities = normalize_counts(expected, source)
    return TranslationTable(["", *source_words], target_words, keys, probabilities, log_likelihoods)


def count_words(pairs: Iterable[Pair], normalization: Normalization | None) -> tuple[list[str], list[str]]:
    """Return the words of both sides, most frequent first, at most MAX_WORDS each."""
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for pair in pairs:
        sides = [words_of(text, normalization) for text in pair]
        if has_valid_length(*sides):
            for count, words in zip(counts, sides, strict=True):
                count.update(words)
                if len(count) > 2 * MAX_WORDS:
                    kept = {word: count[word] for word in most_frequent(count)}
                    count.clear()
                    count.update(kept)
    if not counts[0]:
        raise SaccadeError(
            "there are no pairs to learn a lexicon from",
            hint=f"give pairs with 1 to {MAX_SENTENCE_WORDS} words on each side",
        )
    return most_frequent(counts[0]), most_frequent(counts[1])


def has_valid_length(source: list[str], target: list[str]) -> bool:
    """Return whether both sides have 1 to MAX_SENTENCE_WORDS words."""
    return 0 < len(source) <= MAX_SENTENCE_WORDS and 0 < len(target) <= MAX_SENTENCE_WORDS


def most_frequent(counts: Counter[str]) -> list[str]:
    """At most MAX_WORDS words, most frequent first, equally frequent ones in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:MAX_WORDS]


class SentenceBatches:
    """A re-iterable over batches of word ids; words without an id are left out."""

    def __init__(
        self,
        pairs: Iterable[Pair],
        source_words: list[str],
        target_words: list[str],
        normalization: Normalization | None,
    ) -> None:
        self.pairs = pairs
        self.source_ids = {word: index for index, word in enumerate(source_words)}
        self.target_ids = {word: index for index, word in enumerate(target_words)}
        self.normalization = normalization

    def __iter__(self) -> Iterator[Batch]:
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        links = 0
        for pair in self.pairs:
            words = words_of(pair.source, self.normalization), words_of(pair.target, self.normalization)
            if not has_valid_length(*words):
                continue
            sources.append([EMPTY_WORD, *(self.source_ids[word] for word in words[0] if word in self.source_ids)])
            targets.append([self.target_ids[word] for word in words[1] if word in self.target_ids])
            links += len(sources[-1]) * len(targets[-1])
            if links >= LINKS_AT_ONCE:
                yield make_batch(sources, targets)
                sources, targets, links = [], [], 0
        if sources:
            yield make_batch(sources, targets)


def make_batch(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """Pack lists of ids into a batch."""
    return Batch(
        source=np.concatenate([np.asarray(ids, dtype=np.int64) for ids in sources]),
        source_lengths=np.array([len(ids) for ids in sources], dtype=np.int64),
        target=np.concatenate([np.asarray(ids, dtype=np.int64) for ids in targets]),
        target_lengths=np.array([len(ids) for ids in targets], dtype=np.int64),
    )


def links_of(batch: Batch, target_words: int) -> Links:
    """All links of a batch, grouped by target position."""
    choices = np.repeat(batch.source_lengths, batch.target_lengths)  # (M,)
    start = np.repeat(np.cumsum(batch.source_lengths) - batch.source_lengths, batch.target_lengths)  # (M,)
    token = np.repeat(np.arange(len(choices)), choices)  # (N,)
    within = np.arange(len(token)) - np.repeat(np.cumsum(choices) - choices, choices)  # (N,) 0 … l
    source = batch.source[start[token] + within]  # (N,)
    return Links(source * target_words + batch.target[token], token, choices)


def count_links(sentences: SentenceBatches) -> Integers:
    """The keys that get a probability, ascending: the most frequent links, and all links of the empty word."""
    target_words = len(sentences.target_ids)
    keys, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    pending: list[tuple[Integers, Integers]] = []
    pending_links = 0
    for batch in sentences:
        key = links_of(batch, target_words).key
        pending.append(np.unique(key[key >= target_words], return_counts=True))  # smaller keys belong to the empty word
        pending_links += len(pending[-1][0])
        if pending_links >= max(MAX_PENDING, len(keys)):
            keys, counts = most_frequent_links(*merge_counts([(keys, counts), *pending]), 2 * MAX_LINKS)
            pending, pending_links = [], 0
    keys, _ = most_frequent_links(*merge_counts([(keys, counts), *pending]), MAX_LINKS)
    return np.concatenate([np.arange(target_words, dtype=np.int64), keys])


def merge_counts(parts: list[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    """Sum the counts of equal keys; the keys are unique and ascending."""
    keys, inverse = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(len(keys), dtype=np.int64)
    np.add.at(counts, inverse, np.concatenate([part[1] for part in parts]))
    return keys, counts


def most_frequent_links(keys: Integers, counts: Integers, limit: int) -> tuple[Integers, Integers]:
    """The `limit` most frequent keys, ascending; among equal counts those of more frequent source words."""
    if len(keys) <= limit:
        return keys, counts
    kept = np.sort(np.argsort(-counts, kind="stable")[:limit])
    return keys[kept], counts[kept]


def add_expected_counts(links: Links, keys: Integers, probabilities: Floats, expected: Floats) -> float:
    """Add the expected counts of the links to `expected` (Brown et al. 1993, eq. 17); return the log-likelihood."""
    index = np.minimum(np.searchsorted(keys, links.key), len(keys) - 1)  # (N,)
    probability = np.where(keys[index] == links.key, probabilities[index], 0.0)  # pruned links have probability 0
    total = np.bincount(links.token, probability, minlength=len(links.choices))  # (M,)
    np.add.at(expected, index, probability / total[links.token])
    return float(np.log(total / links.choices).sum())


def normalize_counts(counts: Floats, source: Integers) -> Floats:
    """Normalize counts to probabilities that sum to 1 for each source word; `source` is ascending."""
    totals = np.bincount(source, counts)
    return np.divide(counts, totals[source], out=np.zeros_like(counts), where=totals[source] > 0)
