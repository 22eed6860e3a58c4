"""Tokenizing and filtering a chunk of pairs, in this process or in a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from saccade.data.cache.length_filters import DroppedPairs, PairFilter
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers


@dataclass(frozen=True)
class EncodedPairs:
    """The kept pairs as packed sequences with end symbols, and the counts of dropped pairs."""

    source_ids: NDArray[np.int32]
    source_lengths: NDArray[np.int64]
    target_ids: NDArray[np.int32]
    target_lengths: NDArray[np.int64]
    kept: NDArray[np.bool_]  # one flag for each input pair
    dropped: DroppedPairs


def encode_pairs(
    pairs: Sequence[Pair], tokenizers: Tokenizers, *, max_length: int, max_ratio: float, filtered: bool = True
) -> EncodedPairs:
    """Tokenize pairs; unless `filtered` is false, drop and count empty, long and unequal pairs."""
    sources = tokenizers.source.encode_batch([pair.source for pair in pairs])
    targets = tokenizers.target.encode_batch([pair.target for pair in pairs])
    pair_filter = PairFilter(max_length=max_length, max_ratio=max_ratio)
    kept = np.ones(len(pairs), dtype=bool)
    if filtered:
        kept = pair_filter.keep(lengths_of(sources), lengths_of(targets))
    else:
        pair_filter.dropped.seen += len(pairs)
    chosen = np.flatnonzero(kept).tolist()
    source_ids, source_lengths = pack_with_end(tokenizers.source, [sources[index] for index in chosen])
    target_ids, target_lengths = pack_with_end(tokenizers.target, [targets[index] for index in chosen])
    return EncodedPairs(source_ids, source_lengths, target_ids, target_lengths, kept, pair_filter.dropped)


def pack_with_end(tokenizer: Tokenizer, sequences: Sequence[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Append the end symbol to each sequence and concatenate them; returns ids and lengths."""
    lengths = lengths_of(sequences) + 1
    ids = chain.from_iterable(chain(sequence, (tokenizer.symbols.end,)) for sequence in sequences)
    return np.fromiter(ids, dtype=np.int32, count=int(lengths.sum())), lengths


def lengths_of(sequences: Sequence[list[int]]) -> NDArray[np.int64]:
    """The length of each sequence."""
    return np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
