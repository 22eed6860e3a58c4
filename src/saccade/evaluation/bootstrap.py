"""Bootstrap resampling: how far a score, or a difference of two, may be chance (Koehn 2004).

The resamples, the 95 % interval and the p-value are those of `sacrebleu --paired-bs`, so its figures compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saccade.errors import SaccadeError
from saccade.evaluation.metrics import References, find_metric
from saccade.evaluation.references import check_references
from saccade.evaluation.sufficient_statistics import SUFFICIENT_STATISTICS, Array


@dataclass(frozen=True)
class Interval:
    """A figure on the whole test set, and the 95 % interval of the same figure on its resamples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric on one test set; the difference is system minus baseline."""

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
    """The score of one system and its 95 % interval."""
    rows = statistics_of(name, hypotheses, references)
    value = SUFFICIENT_STATISTICS[name].value
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
    baseline_rows = statistics_of(name, baseline, references)
    system_rows = statistics_of(name, system, references)
    width = baseline_rows.shape[1]
    sums = resampled_sums(np.concatenate([baseline_rows, system_rows], axis=1), samples, seed)  # (samples, 2 K)
    value = SUFFICIENT_STATISTICS[name].value
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


def statistics_of(name: str, hypotheses: Sequence[str], references: References) -> Array:
    """The sufficient statistics (N, K) of one system."""
    find_metric(name)
    check_references(hypotheses, references)
    return SUFFICIENT_STATISTICS[name].extract(hypotheses, references)


def resampled_sums(rows: Array, samples: int, seed: int) -> Array:
    """Sums (samples, K) of the statistics over as many resamples, each of N sentences drawn with replacement."""
    if samples < 1:
        raise SaccadeError(f"the bootstrap needs at least one resample, not {samples}")
    generator = np.random.default_rng(seed)
    count = len(rows)
    sums = np.empty((samples, rows.shape[1]))
    for sample in range(samples):
        # How often each sentence was drawn, times the statistics: no copy of the test set for each resample.
        drawn = np.bincount(generator.choice(count, size=count, replace=True), minlength=count)
        sums[sample] = drawn @ rows
    return sums


def interval_of(value: float, resampled: Array) -> Interval:
    """The interval that leaves out one fortieth of the resamples at each end."""
    ordered = np.sort(resampled)
    margin = len(ordered) // 40
    return Interval(value, low=float(ordered[margin]), high=float(ordered[len(ordered) - margin - 1]))


def p_value_of(difference: float, resampled: Array) -> float:
    """How often chance alone gives such a difference: the resampled differences, shifted to a mean of zero, pass it.

    Departs from sacreBLEU where no resample tells the systems apart: that is no evidence, so 1 and not almost 0.
    """
    if not resampled.any():
        return 1.0
    sizes = np.abs(resampled)
    passed = int(np.sum(sizes - sizes.mean() > abs(difference)))
    return (passed + 1) / (len(resampled) + 1)
