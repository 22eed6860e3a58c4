"""Sufficient statistics per sentence: their sums over a resample give its score, vectorized over resamples.

Shapes: N sentences, K statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from saccade.evaluation.edit_distance import Unit, closest_edits
from saccade.evaluation.metrics import References, bleu_metric, exact_matches
from saccade.evaluation.references import reference_streams

Array = npt.NDArray[np.float64]

BLEU_ORDER = 4


class SufficientStatistics(NamedTuple):
    """A metric as statistics per sentence and a function of their sums."""

    extract: Callable[[Sequence[str], References], Array]  # (N, K)
    value: Callable[[Array], Array]  # sums (..., K) to scores (...)


def bleu_statistics(hypotheses: Sequence[str], references: References) -> Array:
    """Extract hypothesis length, closest reference length, matched n-grams and n-grams of each order."""
    return sacrebleu_statistics(bleu_metric(), hypotheses, references)


def chrf_statistics(hypotheses: Sequence[str], references: References) -> Array:
    """Extract n-gram counts of the hypothesis, of the best reference, and of their matches, for each order."""
    return sacrebleu_statistics(CHRF(), hypotheses, references)


def ter_statistics(hypotheses: Sequence[str], references: References) -> Array:
    """Extract edits to the best reference and the mean reference length."""
    return sacrebleu_statistics(TER(), hypotheses, references)


def sacrebleu_statistics(metric: Metric, hypotheses: Sequence[str], references: References) -> Array:
    """Extract the statistics that sacreBLEU's significance tests resample; it has no public function for them."""
    return np.array(metric._extract_corpus_statistics(hypotheses, reference_streams(references)), dtype=np.float64)


def match_statistics(hypotheses: Sequence[str], references: References) -> Array:
    """Extract whether the hypothesis matches a reference, and 1 to count the sentence."""
    return np.array([(match, 1) for match in exact_matches(hypotheses, references)], dtype=np.float64)


def mismatch_statistics(hypotheses: Sequence[str], references: References) -> Array:
    """Extract whether the hypothesis matches no reference, and 1 to count the sentence."""
    return np.array([(not match, 1) for match in exact_matches(hypotheses, references)], dtype=np.float64)


def edit_statistics(unit: Unit) -> Callable[[Sequence[str], References], Array]:
    """Return a function that extracts the edits to the closest reference, and its length."""

    def extract(hypotheses: Sequence[str], references: References) -> Array:
        edits = closest_edits(hypotheses, references, unit)
        return np.array([(edit.total, edit.reference_length) for edit in edits], dtype=np.float64)

    return extract


def bleu_value(sums: Array) -> Array:
    """Compute BLEU with the exponential smoothing of mteval-v13a, sacreBLEU's default."""
    hypothesis, reference = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + BLEU_ORDER], sums[..., 2 + BLEU_ORDER :]
    # Each order without a match counts as half a match, then a quarter of one, and so on.
    smoothed = np.where(matched == 0, 0.5 ** np.cumsum(matched == 0, axis=-1), matched)
    precision = smoothed / np.maximum(total, 1)
    brevity = np.exp(np.minimum(0, 1 - reference / np.maximum(hypothesis, 1)))
    # Without any match, or without n-grams of the highest order, sacreBLEU gives 0.
    defined = (matched[..., 0] > 0) & (total[..., -1] > 0)
    return np.where(defined, 100 * brevity * np.exp(np.log(precision).mean(axis=-1)), 0.0)


def chrf_value(sums: Array) -> Array:
    """Compute chrF with precision and recall averaged over the orders that occur, sacreBLEU's default."""
    orders = sums.reshape(*sums.shape[:-1], -1, 3)
    hypothesis, reference, matched = orders[..., 0], orders[..., 1], orders[..., 2]
    occurs = (hypothesis > 0) & (reference > 0)
    count = np.maximum(occurs.sum(axis=-1), 1)
    precision = np.where(occurs, matched / np.maximum(hypothesis, 1), 0).sum(axis=-1) / count
    recall = np.where(occurs, matched / np.maximum(reference, 1), 0).sum(axis=-1) / count
    weight = CHRF.BETA**2
    divisor = weight * precision + recall
    return np.where(divisor > 0, 100 * (1 + weight) * precision * recall / np.where(divisor > 0, divisor, 1), 0.0)


def rate_value(sums: Array) -> Array:
    """Divide the first sum by the second, in percent; if the second is 0, 100 if the first is positive, else 0."""
    counted, length = sums[..., 0], sums[..., 1]
    return np.where(length > 0, 100 * counted / np.where(length > 0, length, 1), 100.0 * (counted > 0))


SUFFICIENT_STATISTICS: dict[str, SufficientStatistics] = {
    "bleu": SufficientStatistics(bleu_statistics, bleu_value),
    "chrf": SufficientStatistics(chrf_statistics, chrf_value),
    "ter": SufficientStatistics(ter_statistics, rate_value),
    "exact-match": SufficientStatistics(match_statistics, rate_value),
    "sequence-error": SufficientStatistics(mismatch_statistics, rate_value),
    "word-error": SufficientStatistics(edit_statistics("word"), rate_value),
    "symbol-error": SufficientStatistics(edit_statistics("symbol"), rate_value),
    "character-error": SufficientStatistics(edit_statistics("character"), rate_value),
}
