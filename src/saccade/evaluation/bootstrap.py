"""Bootstrap resampling: confidence intervals and p-values of scores and of their differences (Koehn 2004).

Resamples, 95 % interval and p-value are computed as in `sacrebleu --paired-bs`, so the figures are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saccade.arguments import check_choice
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import References, find_metric
from saccade.evaluation.references import check_references
from saccade.evaluation.sufficient_statistics import SUFFICIENT_STATISTICS, Array


@dataclass(frozen=True)
class Interval:
    """A score on the test set, and its 95 % interval over resamples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Comparison:
    """The comparison of two systems by one metric on one test set; the difference is system minus baseline."""

    name: str
    baseline: Interval
    system: Interval
    difference: Interval
    p_value: float

    def __str__(self) -> str:
        return (
            f"{self.name}: baseline {self.baseline}, system {self.system}, "
            f"difference {self.difference}, p = {self.p_value:.4f}"
        )


def interval(
    name: str, hypotheses: Sequence[str], references: References, *, samples: int = 1000, seed: int = 12345
) -> Interval:
    """Return the score of one system and its 95 % interval."""
    rows = statistics_of(name, hypotheses, references)
    return interval_of_statistics(rows, SUFFICIENT_STATISTICS[name].value, samples=samples, seed=seed)


def mean_interval(scores: Sequence[float], *, samples: int = 1000, seed: int = 12345) -> Interval:
    """Return the mean of sentence scores and its 95 % interval."""
    return interval_of_statistics(mean_statistics(scores), mean_value, samples=samples, seed=seed)


def interval_of_statistics(rows: Array, value: Callable[[Array], Array], *, samples: int, seed: int) -> Interval:
    """Return the score of statistics (N, K) and its 95 % interval."""
    return interval_of(float(value(rows.sum(axis=0))), value(resampled_sums(rows, samples, seed)))


def paired_bootstrap(
    name: str,
    baseline: Sequence[str],
    system: Sequence[str],
    references: References,
    *,
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Compare two systems on the same resamples of the test set."""
    check_choice(name, "metric", SUFFICIENT_STATISTICS)
    value = SUFFICIENT_STATISTICS[name].value
    baseline_rows, system_rows = (statistics_of(name, one, references) for one in (baseline, system))
    return compare_statistics(name, baseline_rows, system_rows, value, samples=samples, seed=seed)


def compare_means(
    name: str, baseline: Sequence[float], system: Sequence[float], *, samples: int = 1000, seed: int = 12345
) -> Comparison:
    """Compare the mean sentence scores of two systems on the same resamples of the test set."""
    rows = mean_statistics(baseline), mean_statistics(system)
    return compare_statistics(name, *rows, mean_value, samples=samples, seed=seed)


def compare_statistics(
    name: str,
    baseline_rows: Array,
    system_rows: Array,
    value: Callable[[Array], Array],
    *,
    samples: int,
    seed: int,
) -> Comparison:
    """Compare two systems by their statistics (N, K), which are resampled together."""
    width = baseline_rows.shape[1]
    sums = resampled_sums(np.concatenate([baseline_rows, system_rows], axis=1), samples, seed)  # (samples, 2 K)
    baseline_value, system_value = float(value(baseline_rows.sum(axis=0))), float(value(system_rows.sum(axis=0)))
    baseline_resampled, system_resampled = value(sums[:, :width]), value(sums[:, width:])
    difference, resampled = system_value - baseline_value, system_resampled - baseline_resampled
    return Comparison(
        name,
        baseline=interval_of(baseline_value, baseline_resampled),
        system=interval_of(system_value, system_resampled),
        difference=interval_of(difference, resampled),
        p_value=p_value_of(difference, resampled),
    )


def mean_statistics(scores: Sequence[float]) -> Array:
    """Return statistics (N, 2) of sentence scores: the score, and 1 to count the sentence."""
    return np.array([(score, 1) for score in scores], dtype=np.float64)


def mean_value(sums: Array) -> Array:
    """Return the mean score of sums (..., 2) of scores and counts."""
    mean: Array = sums[..., 0] / sums[..., 1]
    return mean


def statistics_of(name: str, hypotheses: Sequence[str], references: References) -> Array:
    """Return the sufficient statistics (N, K) of one system."""
    find_metric(name)
    check_references(hypotheses, references)
    return SUFFICIENT_STATISTICS[name].extract(hypotheses, references)


def resampled_sums(rows: Array, samples: int, seed: int) -> Array:
    """Return sums (samples, K) of the statistics over each resample of N sentences, drawn with replacement."""
    if samples < 1:
        raise SaccadeError(f"the bootstrap needs at least one resample, not {samples}")
    generator = np.random.default_rng(seed)
    count = len(rows)
    sums = np.empty((samples, rows.shape[1]))
    for sample in range(samples):
        # Counts times statistics: no copy of the test set for each resample.
        drawn = np.bincount(generator.choice(count, size=count, replace=True), minlength=count)
        sums[sample] = drawn @ rows
    return sums


def interval_of(value: float, resampled: Array) -> Interval:
    """Return the 95 % interval: it excludes 2.5 % of the resamples at each end."""
    ordered = np.sort(resampled)
    margin = len(ordered) // 40
    return Interval(value, low=float(ordered[margin]), high=float(ordered[len(ordered) - margin - 1]))


def p_value_of(difference: float, resampled: Array) -> float:
    """Return the p-value of a difference: the share of resampled differences, centered at zero, that exceed it.

    Departure from sacreBLEU: if all resampled differences are 0, there is no evidence, and p is 1 instead of almost 0.
    """
    if not resampled.any():
        return 1.0
    sizes = np.abs(resampled)
    exceeding = int(np.sum(sizes - sizes.mean() > abs(difference)))
    return (exceeding + 1) / (len(resampled) + 1)
