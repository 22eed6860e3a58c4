"""Test sentences by the length of their source: long ones are where a model that keeps one vector falls behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONG = 20  # a sentence of more words is a long one; no bucket holds both kinds
EDGES = (10, 15, LONG, 25, 30, 40, 60)  # the most words of each bucket; the last bucket has no end
FEWEST = 30  # sentences of a bucket, where there are that many


@dataclass(frozen=True)
class Bucket:
    """Sentences of `low` to `high` source words, and their places in the test set."""

    low: int
    high: int | None
    rows: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.low}+" if self.high is None else f"{self.low}–{self.high}"


def source_words(source: str) -> int:
    """Words between spaces."""
    return len(source.split())


def long_rows(sources: Sequence[str]) -> list[int]:
    """The places of the sentences of more than 20 words."""
    return [row for row, source in enumerate(sources) if source_words(source) > LONG]


def length_buckets(sources: Sequence[str], *, fewest: int = FEWEST) -> list[Bucket]:
    """Buckets of at least `fewest` sentences, short ones first; neighbours are merged to reach that.

    Long and short sentences are never merged, so the only bucket of a side may have fewer. An empty line counts as the
    shortest sentence.
    """
    lengths = [source_words(source) for source in sources]
    lows = (1, *(edge + 1 for edge in EDGES))
    highs: tuple[int | None, ...] = (*EDGES, None)
    buckets: list[Bucket] = []
    for low, high in zip(lows, highs, strict=True):
        most = max(lengths, default=0) if high is None else high
        rows = tuple(row for row, length in enumerate(lengths) if low <= max(length, 1) <= most)
        buckets.append(Bucket(low, high, rows))
    sides = [[one for one in buckets if (one.low > LONG) == is_long] for is_long in (False, True)]
    return [bucket for side in sides for bucket in merged(side, fewest) if bucket.rows]


def merged(buckets: Sequence[Bucket], fewest: int) -> list[Bucket]:
    """Neighbours together until each has enough; what is left over at the end joins the last one."""
    found: list[Bucket] = []
    pending: Bucket | None = None
    for bucket in buckets:
        pending = bucket if pending is None else join(pending, bucket)
        if len(pending.rows) >= fewest:
            found.append(pending)
            pending = None
    if pending is not None:
        found = [*found[:-1], join(found[-1], pending)] if found else [pending]
    return found


def join(first: Bucket, second: Bucket) -> Bucket:
    """Two neighbours as one."""
    return Bucket(first.low, second.high, tuple(sorted((*first.rows, *second.rows))))
