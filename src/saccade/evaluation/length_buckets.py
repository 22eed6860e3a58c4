"""Buckets of test sentences by source length, to compare models on short and long sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONG = 20  # sentences of more words are long; no bucket mixes short and long ones
EDGES = (10, 15, LONG, 25, 30, 40, 60)  # maximum number of words of each bucket; one more bucket has no maximum
MIN_SENTENCES = 30  # per bucket, if there are that many


@dataclass(frozen=True)
class Bucket:
    """The test sentences of `low` to `high` source words."""

    low: int
    high: int | None
    indices: tuple[int, ...]  # of the sentences in the test set

    def __str__(self) -> str:
        return f"{self.low}+" if self.high is None else f"{self.low}–{self.high}"


def source_words(source: str) -> int:
    """Return the number of words, separated by spaces."""
    return len(source.split())


def long_sentences(sources: Sequence[str]) -> list[int]:
    """Return the indices of the sentences of more than 20 words."""
    return [index for index, source in enumerate(sources) if source_words(source) > LONG]


def length_buckets(sources: Sequence[str], *, minimum: int = MIN_SENTENCES) -> list[Bucket]:
    """Return buckets of at least `minimum` sentences, by length; neighbors are merged to reach the minimum.

    Short and long sentences are not merged, so a bucket may have fewer sentences if it is the only one of its kind. An
    empty line counts as the shortest sentence.
    """
    lengths = [source_words(source) for source in sources]
    lows = (1, *(edge + 1 for edge in EDGES))
    highs: tuple[int | None, ...] = (*EDGES, None)
    buckets: list[Bucket] = []
    for low, high in zip(lows, highs, strict=True):
        longest = max(lengths, default=0) if high is None else high
        indices = tuple(index for index, length in enumerate(lengths) if low <= max(length, 1) <= longest)
        buckets.append(Bucket(low, high, indices))
    kinds = [[bucket for bucket in buckets if (bucket.low > LONG) == is_long] for is_long in (False, True)]
    return [bucket for kind in kinds for bucket in merged(kind, minimum) if bucket.indices]


def merged(buckets: Sequence[Bucket], minimum: int) -> list[Bucket]:
    """Merge neighbors until each bucket has the minimum; a remainder is merged into the last bucket."""
    found: list[Bucket] = []
    pending: Bucket | None = None
    for bucket in buckets:
        pending = bucket if pending is None else join(pending, bucket)
        if len(pending.indices) >= minimum:
            found.append(pending)
            pending = None
    if pending is not None:
        found = [*found[:-1], join(found[-1], pending)] if found else [pending]
    return found


def join(first: Bucket, second: Bucket) -> Bucket:
    """Merge two neighboring buckets."""
    return Bucket(first.low, second.high, tuple(sorted((*first.indices, *second.indices))))
