"""Median and range of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median and range of at least one value."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 0) -> str:
        """The median with the range in brackets; a single value without a range."""
        if self.count == 1:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Spread | None:
    """Ratios within each round, so that drift of the machine cancels; None if no round has both values."""
    pairs = zip(ours, theirs, strict=False)
    found = [our / their for our, their in pairs if our is not None and their is not None and their > 0]
    return Spread.of(found) if found else None
