from __future__ import annotations

import time

import numpy as np
import pytest
import sacrebleu.metrics
from noisy_systems import noisy_systems
from sacrebleu.significance import PairedTest

from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import interval, paired_bootstrap, resampled_sums
from saccade.evaluation.metrics import METRICS, score
from saccade.evaluation.sufficient_statistics import SUFFICIENT_STATISTICS

SAMPLES = 40


def test_every_metric_can_be_resampled() -> None:
    assert SUFFICIENT_STATISTICS.keys() == METRICS.keys()


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize(
    "hypotheses",
    [["a b c d e", "f g"], ["a b x d", "f g"], ["x", "y"], ["", ""], ["a", "f"], ["a b c d e f g h", "f g h i j k"]],
)
def test_sums_of_statistics_give_the_score(name: str, hypotheses: list[str]) -> None:
    references = [["a b c d e", "a b c"], ["f g h"]]
    statistics = SUFFICIENT_STATISTICS[name]
    value = statistics.value(statistics.extract(hypotheses, references).sum(axis=0))
    assert float(value) == pytest.approx(score(name, hypotheses, references).value)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_resampled_statistics_equal_scores_of_resampled_texts(name: str) -> None:
    data = noisy_systems(12, several=True)
    result = paired_bootstrap(name, data.baseline, data.system, data.references, samples=SAMPLES, seed=3)

    generator = np.random.default_rng(3)
    baseline, system = [], []
    for _ in range(SAMPLES):
        rows = generator.choice(12, size=12)
        references = [data.references[row] for row in rows]
        baseline.append(score(name, [data.baseline[row] for row in rows], references).value)
        system.append(score(name, [data.system[row] for row in rows], references).value)
    differences = np.array(system) - np.array(baseline)
    real = score(name, data.system, data.references).value - score(name, data.baseline, data.references).value

    for found, resampled in [(result.baseline, baseline), (result.system, system), (result.difference, differences)]:
        ordered = sorted(resampled)
        assert found.low == pytest.approx(ordered[1])
        assert found.high == pytest.approx(ordered[-2])
    assert result.difference.value == pytest.approx(real)
    centered = np.abs(differences) - np.abs(differences).mean()
    assert result.p_value == pytest.approx((np.sum(centered > abs(real) + 1e-9) + 1) / (SAMPLES + 1))
    alone = interval(name, data.baseline, data.references, samples=SAMPLES, seed=3)
    assert alone == result.baseline


@pytest.mark.parametrize(("name", "metric"), [("bleu", "BLEU"), ("chrf", "CHRF")])
def test_intervals_and_p_values_equal_those_of_sacrebleu(name: str, metric: str) -> None:
    data = noisy_systems(150)
    streams = [[accepted[0] for accepted in data.references]]
    named = [("baseline", data.baseline), ("system", data.system)]
    test = PairedTest(named, {"metric": getattr(sacrebleu.metrics, metric)()}, streams, test_type="bs", n_samples=400)
    scores = test()[1]
    baseline, system = next(values for key, values in scores.items() if key != "System")
    result = paired_bootstrap(name, data.baseline, data.system, data.references, samples=400)
    for found, expected in [(result.baseline, baseline), (result.system, system)]:
        assert found.value == pytest.approx(expected.score)
        assert (found.high - found.low) / 2 == pytest.approx(expected.ci, rel=1e-3)
    assert result.p_value == pytest.approx(system.p_value, abs=1 / 400)


def test_resampled_sums_equal_sums_over_drawn_rows() -> None:
    rows = np.arange(14.0).reshape(7, 2)
    drawn = np.random.default_rng(5).choice(7, size=(9, 7), replace=True)
    np.testing.assert_allclose(resampled_sums(rows, 9, seed=5), rows[drawn].sum(axis=1))


def test_equal_systems_do_not_differ_significantly() -> None:
    data = noisy_systems(30)
    result = paired_bootstrap("bleu", data.system, data.system, data.references, samples=SAMPLES)
    assert result.p_value == 1
    assert (result.difference.low, result.difference.value, result.difference.high) == (0, 0, 0)


def test_a_clear_difference_is_significant_and_reproducible() -> None:
    data = noisy_systems(200)
    result = paired_bootstrap("word-error", data.baseline, data.system, data.references, samples=200)
    assert result.p_value < 0.05
    assert result.difference.high < 0
    assert result == paired_bootstrap("word-error", data.baseline, data.system, data.references, samples=200)
    assert "word-error: baseline " in str(result)


def test_a_thousand_resamples_of_a_thousand_sentences_are_fast() -> None:
    data = noisy_systems(1000)
    start = time.perf_counter()
    paired_bootstrap("bleu", data.baseline, data.system, data.references)
    assert time.perf_counter() - start < 5


def test_invalid_arguments_are_errors() -> None:
    with pytest.raises(SaccadeError, match="'bleu'"):
        interval("blue", ["a"], [["a"]])
    with pytest.raises(SaccadeError, match=r"\b2\b.*\b1\b"):
        paired_bootstrap("bleu", ["a"], ["a", "b"], [["a"]])
    with pytest.raises(SaccadeError, match=r"resample.* 0"):
        interval("bleu", ["a"], [["a"]], samples=0)
