"""Leaving out pairs that cannot teach: an empty side, too many tokens, sides of too different length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Dropped:
    """How many pairs were left out, and why; each dropped pair counts for its first reason only."""

    max_length: int = 0  # the limits stand here for the report
    max_ratio: float = 0.0
    seen: int = 0
    empty: int = 0
    too_long: int = 0
    unequal: int = 0

    def add(self, more: Dropped) -> None:
        """Count what was dropped elsewhere under the same limits."""
        self.seen += more.seen
        self.empty += more.empty
        self.too_long += more.too_long
        self.unequal += more.unequal

    @property
    def total(self) -> int:
        """All dropped pairs."""
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
    """Decides by token counts which pairs to keep, and remembers how many it dropped."""

    def __init__(self, *, max_length: int, max_ratio: float = 0.0) -> None:
        self.dropped = Dropped(max_length=max_length, max_ratio=max_ratio)

    def keep(self, source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which pairs to keep, given both sides' token counts without the end symbol."""
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
