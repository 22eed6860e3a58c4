"""The pairs of a run's corpora, as a stream that starts anew whenever it is asked for, and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair, read_pairs

CHUNK_PAIRS = 10_000  # enough to keep a worker busy, few enough to hold many chunks in memory
CHUNK_CHARACTERS = 4_000_000  # the same for long texts


class Chunk(NamedTuple):
    """Some pairs of one corpus; `first` is the number of the first one in it, from 1."""

    corpus: int
    first: int
    pairs: list[Pair]


def chunked(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The pairs in lists that fit into memory; where they are cut depends on the pairs alone."""
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if len(chunk) == CHUNK_PAIRS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def training_chunks(config: DataConfig) -> Iterator[Chunk]:
    """All training pairs, corpus after corpus."""
    for corpus in range(len(config.source)):
        first = 1
        for pairs in chunked(training_pairs(config, corpus)):
            yield Chunk(corpus, first, pairs)
            first += len(pairs)


def training_pairs(config: DataConfig, corpus: int) -> Iterator[Pair]:
    """The pairs of one training corpus."""
    target = config.target[corpus] if config.target else None
    return read_pairs(
        config.source[corpus], target, source_column=config.source_column, target_column=config.target_column
    )


def validation_pairs(config: DataConfig) -> Iterator[Pair]:
    """The pairs of the validation files, if any are named."""
    if config.valid_source is None:
        return iter(())
    return read_pairs(
        config.valid_source,
        config.valid_target,
        source_column=config.source_column,
        target_column=config.target_column,
    )
