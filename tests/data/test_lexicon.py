from __future__ import annotations

import gzip
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from saccade.data.lexicon import ibm_model_1 as ibm_model
from saccade.data.lexicon.ibm_model_1 import WordPair, learn_translations, words_of
from saccade.data.lexicon.lexicon_file import Lexicon, in_case_of, read_lexicon, write_lexicon
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.errors import SaccadeError

HOUSES = [Pair("the house", "das Haus"), Pair("the book", "das Buch"), Pair("a book", "ein Buch")]


def slowly(pairs: list[Pair], iterations: int) -> tuple[dict[tuple[str, str], float], list[float]]:
    """Model 1 word by word: the probabilities and the log-likelihood before each iteration."""
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
def test_it_is_model_1(pairs: list[Pair], at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated words, several batches and all: as the sums over words say."""
    monkeypatch.setattr(ibm_model, "LINKS_AT_ONCE", at_once)
    monkeypatch.setattr(ibm_model, "MOST_PENDING", at_once)
    given = [*pairs[::3], Pair("the the book", "das Buch Buch")]
    table = learn_translations(given, iterations=4)
    expected, likelihoods = slowly(given, 4)
    found = {
        (table.source_words[key // len(table.target_words)], table.target_words[key % len(table.target_words)]): p
        for key, p in zip(table.keys.tolist(), table.probabilities.tolist(), strict=True)
    }
    assert found == pytest.approx(expected)
    assert table.log_likelihoods == pytest.approx(likelihoods)


def test_the_first_iteration_by_hand() -> None:
    """One pair "a b" to "x": each of "", a and b takes a third of x, and x is all they become."""
    table = learn_translations([Pair("a b", "x")], iterations=1)
    assert table.best(1, 0.0) == [WordPair("a", "x", 1.0), WordPair("b", "x", 1.0)]
    assert table.log_likelihoods == [0.0]  # log(1/3 · (1 + 1 + 1))


def test_known_translations_come_out() -> None:
    table = learn_translations(HOUSES, iterations=30)
    best = {entry.source: entry for entry in table.best(1, 0.1)}
    assert {source: entry.target for source, entry in best.items()} == {
        "the": "das",
        "house": "Haus",
        "book": "Buch",
        "a": "ein",
    }
    assert best["the"].probability > 0.9


def test_the_likelihood_never_falls(pairs: list[Pair]) -> None:
    for given in (HOUSES, pairs):
        likelihoods = learn_translations(given, iterations=40).log_likelihoods
        assert len(likelihoods) == 40
        assert all(after >= before - 1e-9 for before, after in pairwise(likelihoods))
        assert likelihoods[-1] > likelihoods[0]


def test_pruning_bounds_the_table_and_the_likelihood_still_rises(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn_translations(pairs, iterations=3)
    monkeypatch.setattr(ibm_model, "MOST_LINKS", 40)
    monkeypatch.setattr(ibm_model, "MOST_PENDING", 10)
    monkeypatch.setattr(ibm_model, "LINKS_AT_ONCE", 50)
    pruned = learn_translations(pairs, iterations=10)
    assert len(pruned.keys) == 40 + len(pruned.target_words) < len(whole.keys)
    assert (np.diff(pruned.keys) > 0).all()
    assert all(b >= a - 1e-9 for a, b in pairwise(pruned.log_likelihoods))


def test_rare_words_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibm_model, "MOST_WORDS", 2)
    table = learn_translations([Pair("a b", "x y"), Pair("a c", "x z"), Pair("c d e", "z u v")])
    assert table.source_words == ["", "a", "c"]
    assert table.target_words == ["x", "z"]


def test_the_same_pairs_give_the_same_table(pairs: list[Pair]) -> None:
    first, second = learn_translations(pairs), learn_translations(pairs)
    assert first.best(3, 0.0) == second.best(3, 0.0)
    assert (first.probabilities == second.probabilities).all()


def test_the_best_words_are_in_order_and_probable_enough(pairs: list[Pair]) -> None:
    table = learn_translations(pairs)
    entries = table.best(3, 0.05)
    assert [entry.source for entry in entries] == sorted(entry.source for entry in entries)
    assert all(entry.source for entry in entries)  # never the empty word
    for word in {entry.source for entry in entries}:
        own = [entry.probability for entry in entries if entry.source == word]
        assert len(own) <= 3
        assert own == sorted(own, reverse=True)
    assert min(entry.probability for entry in entries) >= 0.05
    assert len(table.best(1, 0.9)) < len(table.best(1, 0.05))


def test_words_are_those_of_the_word_tokenizer() -> None:
    text = "  Zwei\u00a0Hunde,\tim Schnee\u200b! <unk> cafe\u0301 "
    tokenizer = Tokenizer.train("word", [text], size=100)
    pieces = [piece.replace("\ufdd1", "<") for piece in tokenizer.encode(text).pieces]
    assert words_of(text, "nfc") == pieces


def test_pairs_that_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SaccadeError, match="no pairs to learn"):
        learn_translations([Pair("", "x"), Pair("a", " ")])
    with pytest.raises(TypeError, match="several times"):
        learn_translations(iter(HOUSES))
    monkeypatch.setattr(ibm_model, "LONGEST", 2)
    assert "c" not in learn_translations([Pair("a b", "x"), Pair("a b c", "x")]).source_words


def test_a_lexicon_comes_back_as_it_was_written(tmp_path: Path) -> None:
    entries = [WordPair("book", "Buch", 0.75), WordPair("house", "Haus", 1 / 3), WordPair("house", "Hauses", 0.2)]
    write_lexicon(tmp_path / "lexicon.tsv", entries)
    assert (tmp_path / "lexicon.tsv").read_text() == "book\tBuch\t0.75\nhouse\tHaus\t0.333333\nhouse\tHauses\t0.2\n"
    assert read_lexicon(tmp_path / "lexicon.tsv") == Lexicon({"book": "Buch", "house": "Haus"})


def test_the_most_probable_line_counts_and_the_probability_may_be_missing(tmp_path: Path) -> None:
    text = "a\tx\t0.2\na\ty\t0.3\n\na\tz\t0.3\nb\tu\nb\tv\t1\ncafe\u0301\tKaffee haus\n"
    with gzip.open(tmp_path / "lexicon.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert read_lexicon(tmp_path / "lexicon.tsv.gz").entries == {"a": "y", "b": "u", "café": "Kaffee haus"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("word", "has 1 column, not 2 or 3"),
        ("a\tb\t0.5\tc", "has 4 columns"),
        ("\tb", "has no source word"),
        ("a\t ", "has no target word"),
        ("two words\tb", "more than one word"),
        ("a\tb\tc", "'c' is no probability"),
        ("a\tb\t1.5", "'1.5' is no probability"),
        ("a\tb\tnan", "'nan' is no probability"),
        ("a\tb\t", "'' is no probability"),
    ],
)
def test_bad_lines_are_named(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lexicon.tsv").write_text(f"good\tgut\n{line}\n")
    with pytest.raises(SaccadeError) as raised:
        read_lexicon(tmp_path / "lexicon.tsv")
    assert said in str(raised.value)
    assert f"{tmp_path / 'lexicon.tsv'}, line 2: " in str(raised.value)


def test_a_lexicon_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="no such file"):
        read_lexicon(tmp_path / "none.tsv")
    (tmp_path / "latin.tsv").write_bytes(b"a\tb\nf\xfcnf\tfive\n")
    with pytest.raises(SaccadeError, match="line 2: byte 2 of the line is not UTF-8"):
        read_lexicon(tmp_path / "latin.tsv")


def test_the_case_of_the_word_is_kept() -> None:
    lexicon = Lexicon({"house": "haus", "US": "USA", "iphone": "iPhone", "o'clock": "uhr"})
    assert lexicon.find("house") == "haus"
    assert lexicon.find("House") == "Haus"
    assert lexicon.find("HOUSE") == "HAUS"
    assert lexicon.find("US") == "USA"
    assert lexicon.find("us") is None  # only small letters are tried
    assert lexicon.find("garden") is None
    assert in_case_of("I", "ich") == "Ich"  # one capital is the first letter, not a shout
    assert in_case_of("1990S", "jahre") == "jahre"
