from __future__ import annotations

import math
import random

import pytest
from sacrebleu.metrics.bleu import BLEU

from saccade.evaluation.sentence_metrics import REWARDS, gleu, ngrams, sentence_bleu


def test_bleu_by_formula():
    """Matches: 4 of 5, 2 of 4, 1 of 3, 0 of 2 n-grams; add-one smoothing from bigrams on; no brevity penalty."""
    found = sentence_bleu(["the", "cat", "sat", "on", "mats"], ["the", "cat", "sits", "on", "mats"])
    assert found == pytest.approx((4 / 5 * 3 / 5 * 1 / 4 * 1 / 3) ** 0.25)


def test_the_brevity_penalty_of_a_short_output():
    """All n-grams match; the penalty of 2 words for a reference of 4 is exp(1 - 4 / 2)."""
    assert sentence_bleu(["a", "b"], ["a", "b", "c", "d"]) == pytest.approx(math.exp(-1))


def test_matches_are_clipped_to_their_count_in_the_reference():
    assert sentence_bleu(["the"] * 3, ["the", "cat", "sat"]) == pytest.approx((1 / 3 * 1 / 3 * 1 / 2) ** 0.25)


def test_bleu_equals_sacrebleu():
    theirs = BLEU(smooth_method="add-k", smooth_value=1, effective_order=True, tokenize="none")
    chooser = random.Random(0)
    for _ in range(300):
        output, reference = (chooser.choices("abcde", k=chooser.randint(1, 9)) for _ in range(2))
        expected = theirs.sentence_score(" ".join(output), [" ".join(reference)]).score / 100
        assert sentence_bleu(output, reference) == pytest.approx(expected, abs=1e-9)


def test_gleu_by_formula():
    """Output: 3 + 2 + 1 n-grams; reference: 4 + 3 + 2 + 1; matches: a, b, c, (b, c); recall, 4 of 10, is smaller."""
    assert gleu(["a", "b", "c"], ["a", "x", "b", "c"]) == pytest.approx(4 / 10)
    assert gleu(["a", "x", "b", "c"], ["a", "b", "c"]) == pytest.approx(4 / 10)


def test_gleu_is_symmetric_and_between_0_and_1():
    chooser = random.Random(1)
    for _ in range(100):
        one, other = (chooser.choices("abc", k=chooser.randint(0, 6)) for _ in range(2))
        assert 0 <= gleu(one, other) == gleu(other, one) <= 1


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("words", [[], ["a"], ["a", "b", "c"], ["a"] * 7], ids=len)
def test_the_reference_scores_1_and_other_words_score_0(name, words):
    assert REWARDS[name](words, words) == pytest.approx(1)
    assert REWARDS[name](["x"] * 5, words) == 0
    assert REWARDS[name]([], ["x"]) == 0


def test_ngrams_are_counted():
    assert ngrams(["a", "b", "a", "b"], 2) == {("a", "b"): 2, ("b", "a"): 1}
    assert ngrams(["a"], 2) == {}
