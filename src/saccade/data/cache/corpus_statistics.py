"""What a tokenised corpus is like, counted while it is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LENGTH_QUANTILE = Fraction(999, 1000)
ALLOWANCE = 10  # tokens that a target may have whatever its source, as the search allows too


@dataclass(frozen=True)
class CorpusStatistics:
    """Sizes of a corpus; lengths and tokens count the end symbols."""

    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    longer_tokens: int = 0  # the sum over all pairs of the longer side
    longest_source: int = 0
    longest_target: int = 0
    growth: float = 0.0  # target less ALLOWANCE, over source: 999 of 1,000 pairs have no larger one
    unknown_source: int = 0
    unknown_target: int = 0


class StatisticsCounter:
    """Counts chunk by chunk; needs memory for the different pairs of lengths only."""

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
        """Count some pairs by the tokens of their sides, end symbols included."""
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
        """All that was counted."""
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
