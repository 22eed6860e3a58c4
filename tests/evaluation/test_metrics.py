from __future__ import annotations

import json
import math

import jiwer
import pytest
import sacrebleu
from noisy_systems import noisy_systems

from saccade.errors import SaccadeError
from saccade.evaluation.edit_distance import closest_edits
from saccade.evaluation.metrics import METRICS, Score, bleu, score

HYPOTHESES = ["The cat sat on the mat.", "It is raining heavily today, is it not?"]
REFERENCES = [["The cat sat on a mat."], ["It rains heavily today, does it not?"]]


def test_bleu_equals_sacrebleu() -> None:
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [[accepted[0] for accepted in REFERENCES]])
    result = score("bleu", HYPOTHESES, REFERENCES)
    assert result.value == expected.score
    assert result.details["brevity_penalty"] == expected.bp
    assert [result.details[f"precision_{order}"] for order in (1, 2, 3, 4)] == expected.precisions
    assert str(result) == (
        f"BLEU = {expected.score:.2f}  nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )


def test_bleu_by_formula() -> None:
    # 5 of 6 words, 3 of 5 bigrams, 2 of 4 trigrams, 1 of 3 four-grams; equal lengths, so no brevity penalty.
    result = bleu(["the cat sat on the mat"], [["the cat sat on a mat"]], tokenize="none")
    assert result.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_bleu_options_change_score_and_signature() -> None:
    upper, lower = ["THE CAT SAT ON THE MAT"], [["the cat sat on the mat"]]
    assert bleu(upper, lower).value < 1
    assert bleu(upper, lower, lowercase=True).value == pytest.approx(100)
    assert "case:lc" in str(bleu(upper, lower, lowercase=True).signature)
    assert "tok:char" in str(bleu(upper, lower, tokenize="char").signature)


def test_chrf_and_ter_equal_sacrebleu() -> None:
    stream = [[accepted[0] for accepted in REFERENCES]]
    assert score("chrf", HYPOTHESES, REFERENCES).value == sacrebleu.corpus_chrf(HYPOTHESES, stream).score
    assert score("ter", HYPOTHESES, REFERENCES).value == sacrebleu.corpus_ter(HYPOTHESES, stream).score
    assert score("chrf", HYPOTHESES, REFERENCES).name == "chrF2"


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_a_varying_number_of_references(name: str) -> None:
    ragged = [REFERENCES[0], [*REFERENCES[1], HYPOTHESES[1]]]
    streams = [[ragged[0][0], ragged[1][0]], [None, ragged[1][1]]]
    direct = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf, "ter": sacrebleu.corpus_ter}[name]
    result = score(name, HYPOTHESES, ragged)
    assert result.value == direct(HYPOTHESES, streams).score
    assert "nrefs:var" in str(result.signature)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_matching_second_reference_gives_a_perfect_score(name: str) -> None:
    best = 100.0 if score(name, HYPOTHESES, REFERENCES).higher_is_better else 0.0
    perfect = [[hypothesis] for hypothesis in HYPOTHESES]
    assert score(name, HYPOTHESES, perfect).value == pytest.approx(best)
    both = [[*accepted, hypothesis] for accepted, hypothesis in zip(REFERENCES, HYPOTHESES, strict=True)]
    assert score(name, HYPOTHESES, REFERENCES).value != pytest.approx(best)
    assert score(name, HYPOTHESES, both).value == pytest.approx(best)
    assert "nrefs:2" in str(score(name, HYPOTHESES, both).signature)


def test_word_error_by_formula() -> None:
    # One substitution, one deletion, one insertion over 3 + 4 reference words.
    result = score("word-error", ["a x c", "e f h i"], [["a b c"], ["e f g h"]])
    assert result.value == pytest.approx(100 * 3 / 7)
    assert result.details["substitutions"] + result.details["insertions"] + result.details["deletions"] == 3
    assert result.details["reference_length"] == 7
    assert not result.higher_is_better


def test_error_rates_equal_jiwer() -> None:
    data = noisy_systems(50)
    firsts = [accepted[0] for accepted in data.references]
    words = score("word-error", data.system, data.references)
    assert words.value == pytest.approx(100 * jiwer.wer(firsts, data.system))
    assert score("symbol-error", data.system, data.references).value == words.value
    characters = score("character-error", data.system, data.references)
    assert characters.value == pytest.approx(100 * jiwer.cer(firsts, data.system))


def test_closest_edits_prefer_the_shorter_of_two_references() -> None:
    closest = closest_edits(["a b c"], [["x y z", "a b c d e f", "a b d"]], "word")
    assert closest == [(1, 0, 0, 3)]
    for accepted in (["a b", "a b c d"], ["a b c d", "a b"]):
        (edits,) = closest_edits(["a b c"], [accepted], "word")
        assert (edits.total, edits.reference_length) == (1, 2)


def test_any_whitespace_separates_words_and_counts_as_a_character() -> None:
    assert score("word-error", ["a\tb\u00a0 c "], [["a b c"]]).value == 0
    assert score("character-error", [" a  b"], [["a b"]]).value == pytest.approx(100 / 3)


def test_empty_texts_have_an_error_rate() -> None:
    assert score("word-error", ["", "a"], [["a b"], ["a"]]).value == pytest.approx(100 * 2 / 3)
    assert score("word-error", [""], [[""]]).value == 0
    assert score("word-error", ["a b"], [[""]]).value == 100


def test_exact_match_and_sequence_error() -> None:
    hypotheses, references = ["K AE T", "D AO G ", "F IH SH"], [["K AE T"], ["D AA G", "D AO G"], ["F IY SH"]]
    match = score("exact-match", hypotheses, references)
    assert match.value == pytest.approx(200 / 3)
    assert match.higher_is_better
    error = score("sequence-error", hypotheses, references)
    assert error.value == pytest.approx(100 / 3)
    assert not error.higher_is_better


def test_unequal_counts_are_an_error_with_both_numbers() -> None:
    for name in METRICS:
        with pytest.raises(SaccadeError, match=r"\b2\b.*\b3\b"):
            score(name, HYPOTHESES, [["a"], ["b"], ["c"]])


@pytest.mark.parametrize(
    ("hypotheses", "references", "where"),
    [
        ([], [], None),
        (["a", "b"], [["a"], []], "line 2"),
        (["a", "b"], ["a", "b"], "line 1"),
    ],
)
def test_test_sets_that_cannot_be_scored_are_errors(
    hypotheses: list[str], references: list[list[str]], where: str | None
) -> None:
    with pytest.raises(SaccadeError) as caught:
        score("bleu", hypotheses, references)
    assert caught.value.where == where


def test_an_error_for_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(SaccadeError, match=r"'wrd-error'\n.*'word-error'"):
        score("wrd-error", ["a"], [["a"]])
    with pytest.raises(SaccadeError, match=r"'13b'\n.*'13a'"):
        bleu(["a"], [["a"]], tokenize="13b")


def test_a_score_becomes_strict_json() -> None:
    data = Score("perplexity", math.inf, None, False, {"bits": math.nan, "tokens": 3.0}).to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == {
        "name": "perplexity",
        "value": None,
        "signature": None,
        "higher_is_better": False,
        "details": {"bits": None, "tokens": 3.0},
    }
    assert str(Score("perplexity", math.inf)) == "perplexity = inf"


@pytest.mark.parametrize("tokenize", ["13a", "none"])
@pytest.mark.parametrize("advise", [False, True])
def test_sacrebleu_warns_of_tokenized_text_if_advise(advise, tokenize, caplog):
    lines = ["a man sits here ."] * 200
    assert bleu(lines, [[line] for line in lines], tokenize=tokenize, advise=advise).value == pytest.approx(100.0)
    assert ("tokenized period" in caplog.text) == (advise and tokenize != "none")
