"""Dropping pairs by length: an empty side, too many tokens, or a too large length ratio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class DroppedPairs:
    """Counts of dropped pairs by reason; each dropped pair counts for its first reason only."""

    max_length: int = 0  # the limits, for the message
    max_ratio: float = 0.0
    seen: int = 0
    empty: int = 0
    too_long: int = 0
    unequal: int = 0

    def add(self, more: DroppedPairs) -> None:
        """Add the counts of another chunk."""
        self.seen += more.seen
        self.empty += more.empty
        self.too_long += more.too_long
        self.unequal += more.unequal

    @property
    def total(self) -> int:
        """The number of dropped pairs."""
        return self.empty + self.too_long + self.unequal

    def __str__(self) -> str:
        if not self.total:
            return f"dropped none of {self.seen:,} pairs"
        reasons = (
            (self.empty, "empty"),
            (self.too_long, f"longer than {self.max_length:,} tokens"),
            (self.unequal, f"with one side more than {self.max_ratio:g} times longer"),
        )
        listing = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
        return f"dropped {self.total:,} of {self.seen:,} pairs: {listing}"


class PairFilter:
    """Decides by length which pairs to keep, and counts the dropped ones."""

    def __init__(self, *, max_length: int, max_ratio: float = 0.0) -> None:
        self.dropped = DroppedPairs(max_length=max_length, max_ratio=max_ratio)

    def keep(self, source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True for each pair to keep, given source and target lengths without the end symbol."""
        longer = np.maximum(source_lengths, target_lengths)
        shorter = np.minimum(source_lengths, target_lengths)
        empty = shorter == 0
        too_long = ~empty & (longer > self.dropped.max_length)
        unequal = np.zeros_like(empty)
        if self.dropped.max_ratio:
            unequal = ~empty & ~too_long & (longer > self.dropped.max_ratio * shorter)
        self.dropped.seen += len(longer)
        self.dropped.empty += int(empty.sum())
        self.dropped.too_long += int(too_long.sum())
        self.dropped.unequal += int(unequal.sum())
        kept: NDArray[np.bool_] = ~(empty | too_long | unequal)
        return kept
