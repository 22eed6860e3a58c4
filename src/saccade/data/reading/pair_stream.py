"""The training and validation pairs of a run, as streams and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair, read_pairs

CHUNK_PAIRS = 10_000  # enough work for a process, small enough to hold many chunks in memory
CHUNK_CHARACTERS = 4_000_000  # bounds the memory of a chunk of long texts


class Chunk(NamedTuple):
    """Consecutive pairs of one corpus; `first` is the number of the first pair in the corpus, from 1."""

    corpus: int
    first: int
    pairs: list[Pair]


def chunked(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Divide pairs into lists of bounded size; the boundaries depend only on the pairs."""
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
    """All training pairs in chunks, one corpus after the other."""
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


class TrainingPairs:
    """A re-iterable over the pairs of all training files; every iteration reads the files again."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    def __iter__(self) -> Iterator[Pair]:
        for corpus in range(len(self.config.source)):
            yield from training_pairs(self.config, corpus)


def validation_pairs(config: DataConfig) -> Iterator[Pair]:
    """The pairs of the validation files; empty if none are given."""
    if config.valid_source is None:
        return iter(())
    return read_pairs(
        config.valid_source,
        config.valid_target,
        source_column=config.source_column,
        target_column=config.target_column,
    )
