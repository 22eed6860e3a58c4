"""Tokenised pairs in flat arrays, ready to be memory-mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from saccade.data.config import DataConfig
from saccade.data.files import Pair
from saccade.data.filters import Dropped, PairFilter
from saccade.data.text import normalize
from saccade.data.tokenizer import Tokenizers
from saccade.errors import SaccadeError

CHUNK = 10_000  # pairs tokenised at a time: enough to keep all cores busy, little enough to hold in memory


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs; example i is `ids[offsets[i]:offsets[i + 1]]` of each side and ends with the end symbol."""

    source_ids: NDArray[np.int32]
    source_offsets: NDArray[np.int64]
    target_ids: NDArray[np.int32]
    target_offsets: NDArray[np.int64]
    dropped: Dropped = field(default_factory=Dropped)
    pairs: list[Pair] | None = None  # the raw texts, kept only if asked for

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, index: int) -> NDArray[np.int32]:
        """The source ids of one example."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> NDArray[np.int32]:
        """The target ids of one example."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]

    @cached_property
    def source_lengths(self) -> NDArray[np.int64]:
        """Tokens of every source, the end symbol included."""
        return np.diff(self.source_offsets)

    @cached_property
    def target_lengths(self) -> NDArray[np.int64]:
        """Tokens of every target, the end symbol included."""
        return np.diff(self.target_offsets)

    @cached_property
    def longer_lengths(self) -> NDArray[np.int64]:
        """Tokens of the longer side of every pair, the end symbol included."""
        return np.maximum(self.source_lengths, self.target_lengths)


def build_corpus(
    pairs: Iterable[Pair],
    tokenizers: Tokenizers,
    config: DataConfig,
    *,
    keep_text: bool = False,
    filtered: bool = True,
) -> Corpus:
    """Tokenise pairs chunk by chunk; unless `filtered` is false, drop (and count) those that cannot teach."""
    pair_filter = PairFilter(max_length=config.max_length, max_ratio=config.max_ratio)
    dropped = pair_filter.dropped
    sources = _Side(tokenizers.source.symbols.end)
    targets = _Side(tokenizers.target.symbols.end)
    texts: list[Pair] = []
    for chunk in _chunks(pairs):
        source_ids = tokenizers.source.encode_batch([pair.source for pair in chunk])
        target_ids = tokenizers.target.encode_batch([pair.target for pair in chunk])
        kept: Sequence[int]
        if filtered:
            kept = np.flatnonzero(pair_filter.keep(_lengths(source_ids), _lengths(target_ids))).tolist()
        else:
            dropped.seen += len(chunk)
            kept = range(len(chunk))
        sources.append([source_ids[index] for index in kept])
        targets.append([target_ids[index] for index in kept])
        if keep_text:
            texts.extend(chunk[index] for index in kept)
    return Corpus(
        source_ids=sources.ids(),
        source_offsets=sources.offsets(),
        target_ids=targets.ids(),
        target_offsets=targets.offsets(),
        dropped=dropped,
        pairs=texts if keep_text else None,
    )


class _Side:
    """One side of a corpus while it grows."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._ids: list[NDArray[np.int32]] = []
        self._lengths: list[NDArray[np.int64]] = []

    def append(self, sequences: Sequence[list[int]]) -> None:
        lengths = _lengths(sequences) + 1
        ended = chain.from_iterable(chain(ids, (self._end,)) for ids in sequences)
        self._ids.append(np.fromiter(ended, dtype=np.int32, count=int(lengths.sum())))
        self._lengths.append(lengths)

    def ids(self) -> NDArray[np.int32]:
        return np.concatenate([np.empty(0, np.int32), *self._ids])

    def offsets(self) -> NDArray[np.int64]:
        return np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]))


def _lengths(sequences: Sequence[list[int]]) -> NDArray[np.int64]:
    return np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


class Split(NamedTuple):
    """Training pairs, and validation pairs taken from among them."""

    train: list[Pair]
    valid: list[Pair]


def hold_out(pairs: Iterable[Pair], count: int) -> Split:
    """Set at most `count` pairs apart, chosen by a hash of the source; pairs with one source stay together.

    The choice depends on the texts alone, so reordered or slightly grown data keeps (almost) the same validation set.
    """
    pairs = list(pairs)
    if count >= len(pairs) > 0:
        raise SaccadeError(
            f"cannot hold out {count:,} of {len(pairs):,} pairs",
            do="lower --data.hold-out so that something is left to train on",
        )
    digests = [_digest(pair.source) for pair in pairs]
    sizes: dict[bytes, int] = {}
    for digest in digests:
        sizes[digest] = sizes.get(digest, 0) + 1
    held: set[bytes] = set()
    room = count
    for digest in sorted(sizes):
        if room == 0:
            break
        # A source that occurs thousands of times ("Yes.") must not flood the validation set: it is passed over.
        if sizes[digest] <= room:
            held.add(digest)
            room -= sizes[digest]
    return Split(
        train=[pair for pair, digest in zip(pairs, digests, strict=True) if digest not in held],
        valid=[pair for pair, digest in zip(pairs, digests, strict=True) if digest in held],
    )


def _digest(source: str) -> bytes:
    """A key that is the same in every process, and for texts that differ only in what normalisation removes."""
    return hashlib.blake2b(normalize(source, "nfkc").encode("utf-8"), digest_size=16).digest()
