"""Statistics of a tokenized corpus, counted while it is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LENGTH_QUANTILE = Fraction(999, 1000)
ALLOWANCE = 10  # target tokens allowed for any source length; the length limit of the search adds the same number


@dataclass(frozen=True)
class CorpusStatistics:
    """Sizes of a tokenized corpus; lengths and token counts include the end symbols."""

    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    longer_tokens: int = 0  # sum over pairs of max(source length, target length)
    longest_source: int = 0
    longest_target: int = 0
    growth: float = 0.0  # 99.9 % quantile of (target length - ALLOWANCE) / source length
    unknown_source: int = 0
    unknown_target: int = 0


class StatisticsCounter:
    """Accumulates statistics chunk by chunk; memory grows only with the distinct pairs of lengths."""

    def __init__(self) -> None:
        self._sums = np.zeros(4, dtype=np.int64)
        self._unknown = np.zeros(2, dtype=np.int64)
        self._longest = np.zeros(2, dtype=np.int64)
        self._lengths: Counter[tuple[int, int]] = Counter()

    def add(
        self,
        source_lengths: NDArray[np.int64],
        target_lengths: NDArray[np.int64],
        *,
        unknown_source: int = 0,
        unknown_target: int = 0,
    ) -> None:
        """Count pairs by their source and target lengths, end symbols included."""
        if not len(source_lengths):
            return
        lengths = np.stack([source_lengths, target_lengths])
        sums = [lengths.shape[1], *lengths.sum(axis=1), lengths.max(axis=0).sum()]
        self._sums += np.array(sums, dtype=np.int64)
        self._unknown += np.array([unknown_source, unknown_target], dtype=np.int64)
        self._longest = np.maximum(self._longest, lengths.max(axis=1))
        different, counts = np.unique(lengths, axis=1, return_counts=True)
        for source, target, count in zip(*different.tolist(), counts.tolist(), strict=True):
            self._lengths[source, target] += count

    def finish(self) -> CorpusStatistics:
        """The statistics of all counted pairs."""
        pairs, source_tokens, target_tokens, longer_tokens = self._sums.tolist()
        longest_source, longest_target = self._longest.tolist()
        unknown_source, unknown_target = self._unknown.tolist()
        return CorpusStatistics(
            pairs=pairs,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            longer_tokens=longer_tokens,
            longest_source=longest_source,
            longest_target=longest_target,
            growth=self._growth(pairs),
            unknown_source=unknown_source,
            unknown_target=unknown_target,
        )

    def _growth(self, pairs: int) -> float:
        reached = 0
        for source, target in sorted(self._lengths, key=lambda lengths: Fraction(lengths[1] - ALLOWANCE, lengths[0])):
            reached += self._lengths[source, target]
            if reached >= LENGTH_QUANTILE * pairs:
                return max(0.0, (target - ALLOWANCE) / source)
        return 0.0
