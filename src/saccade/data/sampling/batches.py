"""Batches: examples of like length side by side, padded, at most so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.data.cache.corpus import Corpus, Ids
from saccade.data.tokenizers.bpe_dropout import Parts, Splitting, split_tokens
from saccade.interface import Source, select
from saccade.symbols import Symbols

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Examples side by side, padded; `prefix` is what the decoder reads, `target` what it should write."""

    source: Source
    prefix: Tensor  # (B, T), begin and the target without its end
    target: Tensor  # (B, T), ends with end
    target_mask: Tensor  # (B, T), True = real
    indices: tuple[int, ...]  # the examples' places in the corpus, to name a bad batch

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return replace(
            self,
            source=move(self.source, device),
            prefix=self.prefix.to(device),
            target=self.target.to(device),
            target_mask=self.target_mask.to(device),
        )

    def split(self, parts: int) -> list[Batch]:
        """In so many parts at most, each with every so manieth example: they are alike in length and number."""
        examples = torch.arange(len(self.indices), device=self.target.device)
        return [self.take(examples[part::parts]) for part in range(min(parts, len(examples)))]

    def take(self, rows: Tensor) -> Batch:
        """Some of the examples."""
        return Batch(
            source=select(self.source, rows),
            prefix=self.prefix.index_select(0, rows),
            target=self.target.index_select(0, rows),
            target_mask=self.target_mask.index_select(0, rows),
            indices=tuple(self.indices[row] for row in rows.tolist()),
        )

    @property
    def source_tokens(self) -> int:
        """Real source tokens, the end symbols included."""
        return int(self.source.mask.sum())

    @property
    def target_tokens(self) -> int:
        """Real target tokens, the end symbols included."""
        return int(self.target_mask.sum())


def move(source: Source, device: torch.device | str) -> Source:
    """A source, with all sources in it, on another device."""
    values = source.values
    moved = values.to(device) if isinstance(values, Tensor) else tuple(move(inner, device) for inner in values)
    return Source(moved, source.mask.to(device))


def collate(
    corpus: Corpus,
    indices: Sequence[int] | Indices,
    symbols: Symbols | None = None,
    *,
    splitting: Splitting | None = None,
    key: int = 0,
) -> Batch:
    """The batch of the given examples; with a `splitting` by the random numbers of a key."""
    symbols = symbols or Symbols()
    rows = np.asarray(indices, dtype=np.int64)
    sources = read_side(corpus, corpus.source_ids, corpus.source_offsets, rows)
    targets = read_side(corpus, corpus.target_ids, corpus.target_offsets, rows)
    if splitting is not None:
        generator = np.random.Generator(np.random.Philox(key))
        sources = split_side(sources, splitting.source, splitting, generator)
        targets = split_side(targets, splitting.target, splitting, generator)
    source, target = pad(sources, symbols.pad), pad(targets, symbols.pad)
    prefix = np.full_like(target.values, symbols.pad)
    prefix[:, 0] = symbols.begin
    prefix[:, 1:] = target.values[:, :-1]
    prefix[~target.mask] = symbols.pad
    return Batch(
        source=Source(torch.from_numpy(source.values), torch.from_numpy(source.mask)),
        prefix=torch.from_numpy(prefix),
        target=torch.from_numpy(target.values),
        target_mask=torch.from_numpy(target.mask),
        indices=tuple(rows.tolist()),
    )


class Side(NamedTuple):
    """One side of some examples, laid end to end."""

    ids: NDArray[np.int32]
    lengths: Indices


def read_side(corpus: Corpus, ids: Ids, offsets: Indices, rows: Indices) -> Side:
    """The given rows of one side of a corpus."""
    starts, ends = corpus.bounds(offsets, rows)
    return Side(corpus.read(ids, starts, ends), ends - starts)


def split_side(side: Side, parts: Parts | None, splitting: Splitting, generator: np.random.Generator) -> Side:
    """The same texts in other tokens."""
    if parts is None:
        return side
    return Side(*split_tokens(*side, parts, splitting.probability, splitting.longest, generator))


@dataclass(frozen=True)
class Padded:
    """Sequences of different lengths in one rectangle."""

    values: NDArray[np.int64]  # (B, L)
    mask: NDArray[np.bool_]  # (B, L), True = real


def pad(side: Side, filler: int) -> Padded:
    """Each text filled up to the longest."""
    mask = np.arange(int(side.lengths.max())) < side.lengths[:, None]
    values = np.full(mask.shape, filler, dtype=np.int64)
    values[mask] = side.ids
    return Padded(values, mask)


def batches_in_order(corpus: Corpus, batch_tokens: int) -> list[Indices]:
    """Every example once, in batches of like lengths, the shortest first: for validation."""
    return bucketed(corpus, np.arange(len(corpus)), batch_tokens).batches


class Bucketed(NamedTuple):
    """Batches of like lengths, and how many positions of both sides they take."""

    batches: list[Indices]
    real: int
    padded: int


def bucketed(corpus: Corpus, examples: Indices, batch_tokens: int) -> Bucketed:
    """The examples in batches of like lengths, the shortest first."""
    source, target = corpus.source_lengths(examples), corpus.target_lengths(examples)
    order = by_length(source, target)
    source, target = source[order], target[order]
    batches = cut(examples[order], np.maximum(source, target), batch_tokens)
    sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    real = padded = 0
    for lengths in (source, target) if batches else ():
        real += int(lengths.sum())
        padded += int((sizes * np.maximum.reduceat(lengths, starts)).sum()) - int(lengths.sum())
    return Bucketed(batches, real, padded)


def by_length(source: Indices, target: Indices) -> Indices:
    """The order in which neighbours are alike on both sides, given both sides' lengths; equal ones stay as they are.

    First by the longer side, which decides how many fit into a batch; then by the difference of the sides, up and down
    in turn, so that a batch that reaches into the next length finds examples of the same difference there.
    """
    longer, difference = np.maximum(source, target), source - target
    in_turn = np.where(longer % 2 == 0, difference, -difference)
    return np.lexsort((in_turn, longer))


def cut(examples: Indices, longer: Indices, batch_tokens: int) -> list[Indices]:
    """The examples, in the order given, cut into batches as large as `batch_tokens` allows for their longer sides."""
    batches: list[Indices] = []
    start = 0
    while start < len(examples):
        most = max(1, batch_tokens // int(longer[start]))  # even if all others were no longer than the first
        window = np.maximum.accumulate(longer[start : start + most])
        fits = window * np.arange(1, len(window) + 1) <= batch_tokens
        rows = max(1, int(np.count_nonzero(fits)))  # once too large, a batch stays too large
        batches.append(examples[start : start + rows])
        start += rows
    return batches
