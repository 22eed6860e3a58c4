"""Tokenised pairs in flat arrays, in memory or mapped from files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from saccade.data.cache.corpus_statistics import CorpusStatistics as CorpusStatistics
from saccade.data.cache.corpus_statistics import StatisticsCounter
from saccade.data.cache.encoding import encode_pairs
from saccade.data.cache.length_filters import Dropped
from saccade.data.cache.mapped_array import MappedArray, spans_of
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import chunked
from saccade.data.tokenizers.tokenizer_pair import Tokenizers

Ids = NDArray[np.int32] | NDArray[np.uint16]
Indices = NDArray[np.int64]


class Bounds(NamedTuple):
    """Where some texts begin and end in the ids of their side."""

    starts: Indices
    ends: Indices


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs; example i is `ids[offsets[i]:offsets[i + 1]]` of each side and ends with the end symbol.

    Several corpora lie one after the other. Nothing here makes an array as long as the corpus.
    """

    source_ids: Ids
    source_offsets: Indices
    target_ids: Ids
    target_offsets: Indices
    parts: tuple[int, ...]  # the pairs of each corpus, in order
    statistics: CorpusStatistics
    dropped: Dropped = field(default_factory=Dropped)
    pairs: list[Pair] | None = None  # the raw texts, kept only if asked for
    maps: tuple[MappedArray, ...] = ()  # the files behind the arrays

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, index: int) -> Ids:
        """The source ids of one example."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> Ids:
        """The target ids of one example."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]

    def source_lengths(self, rows: Indices) -> Indices:
        """Tokens of the given sources, the end symbols included."""
        return self.lengths(self.source_offsets, rows)

    def target_lengths(self, rows: Indices) -> Indices:
        """Tokens of the given targets, the end symbols included."""
        return self.lengths(self.target_offsets, rows)

    def longer_lengths(self, rows: Indices) -> Indices:
        """Tokens of the longer side of the given pairs, the end symbols included."""
        return np.maximum(self.source_lengths(rows), self.target_lengths(rows))

    def lengths(self, offsets: Indices, rows: Indices) -> Indices:
        """Tokens of the given rows of the side that has these offsets."""
        bounds = self.bounds(offsets, rows)
        return bounds.ends - bounds.starts

    def bounds(self, offsets: Indices, rows: Indices) -> Bounds:
        """Where the given rows of the side that has these offsets begin and end among its ids."""
        rows = np.asarray(rows, dtype=np.int64)
        return Bounds(*self.read(offsets, rows, rows + 2).reshape(-1, 2).T)

    def read(self, array: NDArray[Any], starts: Indices, ends: Indices) -> NDArray[Any]:
        """Some spans of one of the arrays, laid end to end; what is mapped stays out of memory."""
        for mapped in self.maps:
            if mapped.array is array:
                return mapped.read(starts, ends)
        return spans_of(array, starts, ends)

    def release(self) -> None:
        """Give back the memory of what was looked at through the maps; it comes back when it is touched again."""
        for mapped in self.maps:
            mapped.release()


def corpus_of_arrays(
    source_ids: Ids,
    source_offsets: Indices,
    target_ids: Ids,
    target_offsets: Indices,
    *,
    unknown: int | None = None,
    dropped: Dropped | None = None,
    pairs: list[Pair] | None = None,
) -> Corpus:
    """One corpus in memory, with its statistics counted here; `unknown` is the id whose occurrences are counted."""
    counter = StatisticsCounter()
    counter.add(
        np.diff(source_offsets),
        np.diff(target_offsets),
        unknown_source=int((source_ids == unknown).sum()),
        unknown_target=int((target_ids == unknown).sum()),
    )
    return Corpus(
        source_ids,
        source_offsets,
        target_ids,
        target_offsets,
        parts=(len(source_offsets) - 1,),
        statistics=counter.finish(),
        dropped=dropped or Dropped(),
        pairs=pairs,
    )


def build_corpus(
    pairs: Iterable[Pair],
    tokenizers: Tokenizers,
    config: DataConfig,
    *,
    keep_text: bool = False,
    filtered: bool = True,
) -> Corpus:
    """Tokenise pairs into memory; unless `filtered` is false, drop (and count) those that cannot teach."""
    dropped = Dropped(max_length=config.max_length, max_ratio=config.max_ratio)
    sources, targets = GrowingSide(), GrowingSide()
    texts: list[Pair] = []
    for chunk in chunked(pairs):
        encoded = encode_pairs(
            chunk, tokenizers, max_length=config.max_length, max_ratio=config.max_ratio, filtered=filtered
        )
        sources.append(encoded.source_ids, encoded.source_lengths)
        targets.append(encoded.target_ids, encoded.target_lengths)
        dropped.add(encoded.dropped)
        if keep_text:
            texts.extend(chunk[index] for index in np.flatnonzero(encoded.kept))
    return corpus_of_arrays(
        sources.ids(),
        sources.offsets(),
        targets.ids(),
        targets.offsets(),
        unknown=tokenizers.source.symbols.unknown,
        dropped=dropped,
        pairs=texts if keep_text else None,
    )


class GrowingSide:
    """One side of a corpus in memory while it grows."""

    def __init__(self) -> None:
        self._ids: list[NDArray[np.int32]] = []
        self._lengths: list[Indices] = []

    def append(self, ids: NDArray[np.int32], lengths: Indices) -> None:
        """Add the ids of some texts, laid end to end."""
        self._ids.append(ids)
        self._lengths.append(lengths)

    def ids(self) -> NDArray[np.int32]:
        """All ids."""
        return np.concatenate([np.empty(0, np.int32), *self._ids])

    def offsets(self) -> Indices:
        """Where each text begins, and where the last one ends."""
        return np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]))
