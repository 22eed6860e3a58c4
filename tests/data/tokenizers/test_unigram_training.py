from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from saccade.data.tokenizers.unigram_training import (
    Pieces,
    Spans,
    best_segmentations,
    expected_counts,
    seed_pieces,
    train_unigram,
)

WORDS = {"abab": 3, "aba": 2, "bc": 5, "abcabc": 2, "c": 1}


@pytest.fixture
def spans() -> Spans:
    ordered = sorted(WORDS, key=lambda word: (-len(word), word))
    lengths = np.array([len(word) for word in ordered])
    return Spans(np.cumsum(lengths) - lengths, lengths, np.array([float(WORDS[word]) for word in ordered]))


@pytest.fixture
def string() -> str:
    return "".join(sorted(WORDS, key=lambda word: (-len(word), word)))


def texts_of(string: str, pieces: Pieces) -> list[str]:
    return [string[start : start + length] for start, length in zip(pieces.starts, pieces.lengths, strict=True)]


def segmentations(word: str, scores: dict[str, float]) -> Iterator[list[str]]:
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in scores:
            yield from ([word[:end], *rest] for rest in segmentations(word[end:], scores))


def probability(segmentation: list[str], scores: dict[str, float]) -> float:
    return math.exp(sum(scores[piece] for piece in segmentation))


def test_seed_pieces_are_the_alphabet_and_repeated_substrings(string: str, spans: Spans) -> None:
    pieces = seed_pieces(string, spans)
    found = texts_of(string, pieces)
    counted: Counter[str] = Counter()
    for word, count in WORDS.items():
        for start in range(len(word)):
            for end in range(start + 1, len(word) + 1):
                counted[word[start:end]] += count
    assert sorted(found) == sorted(piece for piece in counted if len(piece) == 1 or counted[piece] >= 2)
    assert sorted(found[: pieces.required]) == ["a", "b", "c"]
    covered = {piece: counted[piece] * len(piece) for piece in found}
    expected = [math.log(covered[piece] / sum(covered.values())) for piece in found]
    np.testing.assert_allclose(pieces.scores, expected)


def test_expected_counts_equal_enumeration(string: str, spans: Spans) -> None:
    pieces = seed_pieces(string, spans)
    names = texts_of(string, pieces)
    scores = dict(zip(names, pieces.scores.tolist(), strict=True))
    expected = dict.fromkeys(names, 0.0)
    for word, count in WORDS.items():
        ways = list(segmentations(word, scores))
        total = sum(probability(way, scores) for way in ways)
        for way in ways:
            for piece in way:
                expected[piece] += count * probability(way, scores) / total
    np.testing.assert_allclose(expected_counts(spans, pieces), list(expected.values()))


@pytest.mark.parametrize("divided", [False, True])
def test_viterbi_equals_enumeration(string: str, spans: Spans, divided: bool) -> None:
    pieces = seed_pieces(string, spans)
    names = texts_of(string, pieces)
    scores = dict(zip(names, pieces.scores.tolist(), strict=True))
    longer_spans = Spans(spans.starts[:-1], spans.lengths[:-1], spans.counts[:-1])  # one letter cannot be divided
    found: list[list[str]] = [[] for _ in longer_spans.starts]
    for step in best_segmentations(longer_spans, pieces, divided=divided):
        for span, piece in zip(step.spans, step.pieces, strict=True):
            found[span].insert(0, names[piece])
    for start, length, way in zip(longer_spans.starts, longer_spans.lengths, found, strict=True):
        word = string[start : start + length]
        ways = [way for way in segmentations(word, scores) if len(way) > divided]
        assert "".join(way) == word
        assert way in ways
        assert probability(way, scores) == pytest.approx(max(probability(way, scores) for way in ways))


def test_frequent_parts_become_pieces() -> None:
    stems = ["walk", "talk", "jump", "look", "call", "play", "help", "rain", "show", "wait", "pick", "land"]
    endings = ["", "s", "ed", "ing", "er"]
    alphabet = set("".join([*stems, *endings]))
    size = len(alphabet) + len(stems) + 3
    words = {stem + ending: 1 for stem in stems for ending in endings}
    pieces = {entry.piece for entry in train_unigram(words, size)}
    assert pieces == alphabet | {*stems, "ed", "ing", "er"}


def test_vocabulary_does_not_depend_on_word_order() -> None:
    words = {f"{a}{b}{a}": len(a) + len(b) for a in ("ba", "na", "ko", "tim") for b in ("x", "yy", "zu", "lala")}
    assert train_unigram(words, 25) == train_unigram(dict(reversed(words.items())), 25)


def test_small_vocabulary_keeps_frequent_characters() -> None:
    pieces = train_unigram({"aaab": 5, "aac": 1, "d": 1}, 2)
    assert {entry.piece for entry in pieces} == {"a", "b"}
