"""A tokenized parallel corpus in flat arrays, in memory or memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from saccade.data.cache.corpus_statistics import CorpusStatistics as CorpusStatistics
from saccade.data.cache.corpus_statistics import StatisticsCounter
from saccade.data.cache.encoding import encode_pairs
from saccade.data.cache.length_filters import DroppedPairs
from saccade.data.cache.mapped_array import MappedArray, concatenate_spans
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import chunked
from saccade.data.tokenizers.tokenizer_pair import Tokenizers

Ids = NDArray[np.int32] | NDArray[np.uint16]
Indices = NDArray[np.int64]


class Bounds(NamedTuple):
    """Start and end offsets of sequences in a flat array of ids."""

    starts: Indices
    ends: Indices


@dataclass(frozen=True)
class Corpus:
    """Tokenized pairs; example i is `ids[offsets[i]:offsets[i + 1]]` of each side, the end symbol included.

    Several corpora are concatenated. No method allocates memory proportional to the corpus.
    """

    source_ids: Ids
    source_offsets: Indices
    target_ids: Ids
    target_offsets: Indices
    parts: tuple[int, ...]  # the number of pairs of each corpus, in order
    statistics: CorpusStatistics
    dropped: DroppedPairs = field(default_factory=DroppedPairs)
    pairs: list[Pair] | None = None  # the raw texts, kept on request
    maps: tuple[MappedArray, ...] = ()  # the memory maps of the arrays, if they are mapped

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, index: int) -> Ids:
        """The source ids of one example."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> Ids:
        """The target ids of one example."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]

    def source_lengths(self, examples: Indices) -> Indices:
        """Source lengths of the given examples, end symbols included."""
        return self.lengths(self.source_offsets, examples)

    def target_lengths(self, examples: Indices) -> Indices:
        """Target lengths of the given examples, end symbols included."""
        return self.lengths(self.target_offsets, examples)

    def longer_lengths(self, examples: Indices) -> Indices:
        """The larger of source and target length of the given examples, end symbols included."""
        return np.maximum(self.source_lengths(examples), self.target_lengths(examples))

    def lengths(self, offsets: Indices, examples: Indices) -> Indices:
        """Lengths of the given examples on the side with these offsets."""
        bounds = self.bounds(offsets, examples)
        return bounds.ends - bounds.starts

    def bounds(self, offsets: Indices, examples: Indices) -> Bounds:
        """Start and end offsets of the given examples on the side with these offsets."""
        examples = np.asarray(examples, dtype=np.int64)
        return Bounds(*self.read(offsets, examples, examples + 2).reshape(-1, 2).T)

    def read(self, array: NDArray[Any], starts: Indices, ends: Indices) -> NDArray[Any]:
        """Concatenated spans of one of the arrays; a mapped array is read from its file, not through the map."""
        for mapped in self.maps:
            if mapped.array is array:
                return mapped.read(starts, ends)
        return concatenate_spans(array, starts, ends)

    def release(self) -> None:
        """Release the resident pages of the memory maps; later accesses load them again."""
        for mapped in self.maps:
            mapped.release()


def corpus_from_arrays(
    source_ids: Ids,
    source_offsets: Indices,
    target_ids: Ids,
    target_offsets: Indices,
    *,
    unknown: int | None = None,
    dropped: DroppedPairs | None = None,
    pairs: list[Pair] | None = None,
) -> Corpus:
    """A corpus of in-memory arrays, with its statistics; `unknown` is the id of the unknown symbol."""
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
        dropped=dropped or DroppedPairs(),
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
    """Tokenize pairs into memory; unless `filtered` is false, drop and count empty, long and unequal pairs."""
    dropped = DroppedPairs(max_length=config.max_length, max_ratio=config.max_ratio)
    sources, targets = SequenceBuffer(), SequenceBuffer()
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
    return corpus_from_arrays(
        sources.ids(),
        sources.offsets(),
        targets.ids(),
        targets.offsets(),
        unknown=tokenizers.source.symbols.unknown,
        dropped=dropped,
        pairs=texts if keep_text else None,
    )


class SequenceBuffer:
    """Collects sequences chunk by chunk into one flat array with offsets."""

    def __init__(self) -> None:
        self._ids: list[NDArray[np.int32]] = []
        self._lengths: list[Indices] = []

    def append(self, ids: NDArray[np.int32], lengths: Indices) -> None:
        """Add packed sequences."""
        self._ids.append(ids)
        self._lengths.append(lengths)

    def ids(self) -> NDArray[np.int32]:
        """The concatenated ids of all sequences."""
        return np.concatenate([np.empty(0, np.int32), *self._ids])

    def offsets(self) -> Indices:
        """The start offset of each sequence, and the end of the last one."""
        return np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]))
