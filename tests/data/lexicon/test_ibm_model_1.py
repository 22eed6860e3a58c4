from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from saccade.data.lexicon import ibm_model_1 as ibm_model
from saccade.data.lexicon.ibm_model_1 import WordPair, learn_translations, words_of
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.errors import SaccadeError

HOUSES = [Pair("the house", "das Haus"), Pair("the book", "das Buch"), Pair("a book", "ein Buch")]


def reference(pairs: list[Pair], iterations: int) -> tuple[dict[tuple[str, str], float], list[float]]:
    """Train Model 1 with loops; return the probabilities, and the log-likelihood before each iteration."""
    sentences = [(["", *pair.source.split()], pair.target.split()) for pair in pairs]
    links = {(s, t) for source, target in sentences for s in source for t in target}
    size: dict[str, int] = defaultdict(int)
    for word, _ in links:
        size[word] += 1
    table = {(s, t): 1 / size[s] for s, t in links}
    likelihoods = []
    for _ in range(iterations):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        likelihood = 0.0
        for source, target in sentences:
            for t in target:
                total = sum(table[s, t] for s in source)
                likelihood += math.log(total / len(source))
                for s in source:
                    counts[s, t] += table[s, t] / total
        totals: dict[str, float] = defaultdict(float)
        for (s, _), count in counts.items():
            totals[s] += count
        table = {(s, t): counts[s, t] / totals[s] for s, t in links}
        likelihoods.append(likelihood)
    return table, likelihoods


@pytest.mark.parametrize("at_once", [1, 7, 500_000])
def test_equals_the_reference(pairs: list[Pair], at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities and likelihoods equal the reference, with repeated words and several batches."""
    monkeypatch.setattr(ibm_model, "LINKS_AT_ONCE", at_once)
    monkeypatch.setattr(ibm_model, "MAX_PENDING", at_once)
    given = [*pairs[::3], Pair("the the book", "das Buch Buch")]
    table = learn_translations(given, iterations=4)
    expected, likelihoods = reference(given, 4)
    found = {
        (table.source_words[key // len(table.target_words)], table.target_words[key % len(table.target_words)]): p
        for key, p in zip(table.keys.tolist(), table.probabilities.tolist(), strict=True)
    }
    assert found == pytest.approx(expected)
    assert table.log_likelihoods == pytest.approx(likelihoods)


def test_first_iteration_by_hand() -> None:
    """In the pair "a b" to "x", the empty word, a and b each get a third of x, and p(x) is 1 for each."""
    table = learn_translations([Pair("a b", "x")], iterations=1)
    assert table.best(1, 0.0) == [WordPair("a", "x", 1.0), WordPair("b", "x", 1.0)]
    assert table.log_likelihoods == [0.0]  # log(1/3 · (1 + 1 + 1))


def test_learns_known_translations() -> None:
    table = learn_translations(HOUSES, iterations=30)
    best = {entry.source: entry for entry in table.best(1, 0.1)}
    assert {source: entry.target for source, entry in best.items()} == {
        "the": "das",
        "house": "Haus",
        "book": "Buch",
        "a": "ein",
    }
    assert best["the"].probability > 0.9


def test_likelihood_does_not_fall(pairs: list[Pair]) -> None:
    for given in (HOUSES, pairs):
        likelihoods = learn_translations(given, iterations=40).log_likelihoods
        assert len(likelihoods) == 40
        assert all(after >= before - 1e-9 for before, after in pairwise(likelihoods))
        assert likelihoods[-1] > likelihoods[0]


def test_pruning_bounds_the_table_and_the_likelihood_still_rises(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpruned = learn_translations(pairs, iterations=3)
    monkeypatch.setattr(ibm_model, "MAX_LINKS", 40)
    monkeypatch.setattr(ibm_model, "MAX_PENDING", 10)
    monkeypatch.setattr(ibm_model, "LINKS_AT_ONCE", 50)
    pruned = learn_translations(pairs, iterations=10)
    assert len(pruned.keys) == 40 + len(pruned.target_words) < len(unpruned.keys)
    assert (np.diff(pruned.keys) > 0).all()
    assert all(b >= a - 1e-9 for a, b in pairwise(pruned.log_likelihoods))


def test_rare_words_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibm_model, "MAX_WORDS", 2)
    table = learn_translations([Pair("a b", "x y"), Pair("a c", "x z"), Pair("c d e", "z u v")])
    assert table.source_words == ["", "a", "c"]
    assert table.target_words == ["x", "z"]


def test_training_is_deterministic(pairs: list[Pair]) -> None:
    first, second = learn_translations(pairs), learn_translations(pairs)
    assert first.best(3, 0.0) == second.best(3, 0.0)
    assert (first.probabilities == second.probabilities).all()


def test_best_entries_are_sorted_and_probable(pairs: list[Pair]) -> None:
    table = learn_translations(pairs)
    entries = table.best(3, 0.05)
    assert [entry.source for entry in entries] == sorted(entry.source for entry in entries)
    assert all(entry.source for entry in entries)  # not the empty word
    for word in {entry.source for entry in entries}:
        probabilities = [entry.probability for entry in entries if entry.source == word]
        assert len(probabilities) <= 3
        assert probabilities == sorted(probabilities, reverse=True)
    assert min(entry.probability for entry in entries) >= 0.05
    assert len(table.best(1, 0.9)) < len(table.best(1, 0.05))


def test_words_match_the_word_tokenizer() -> None:
    text = "  Zwei\u00a0Hunde,\tim Schnee\u200b! <unk> cafe\u0301 "
    tokenizer = Tokenizer.train("word", [text], size=100)
    pieces = [piece.replace("\ufdd1", "<") for piece in tokenizer.encode(text).pieces]
    assert words_of(text, "nfc") == pieces


def test_unusable_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SaccadeError, match="no pairs to learn"):
        learn_translations([Pair("", "x"), Pair("a", " ")])
    with pytest.raises(TypeError, match="several times"):
        learn_translations(iter(HOUSES))
    monkeypatch.setattr(ibm_model, "MAX_SENTENCE_WORDS", 2)
    assert "c" not in learn_translations([Pair("a b", "x"), Pair("a b c", "x")]).source_words
