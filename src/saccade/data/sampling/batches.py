"""Batches: padded tensors of examples with similar lengths, limited by a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.data.cache.corpus import Corpus, Ids
from saccade.data.tokenizers.bpe_dropout import BpeDropout, MergeTable, undo_merges
from saccade.interface import Source, select
from saccade.symbols import Symbols

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """A padded batch; `prefix` is the decoder input, `target` the decoder output."""

    source: Source
    prefix: Tensor  # (B, T), the target shifted right: the begin symbol, then the target without its end symbol
    target: Tensor  # (B, T), includes the end symbol
    target_mask: Tensor  # (B, T), True = token, False = padding
    indices: tuple[int, ...]  # of the examples in the corpus, to name a batch in an error

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to another device."""
        return replace(
            self,
            source=move_source(self.source, device),
            prefix=self.prefix.to(device),
            target=self.target.to(device),
            target_mask=self.target_mask.to(device),
        )

    def split(self, parts: int) -> list[Batch]:
        """Split into at most `parts` batches; part i takes examples i, i + parts, …, so the parts are balanced."""
        examples = torch.arange(len(self.indices), device=self.target.device)
        return [self.take(examples[part::parts]) for part in range(min(parts, len(examples)))]

    def take(self, examples: Tensor) -> Batch:
        """Return the batch of the given examples, which are indices into this batch."""
        return Batch(
            source=select(self.source, examples),
            prefix=self.prefix.index_select(0, examples),
            target=self.target.index_select(0, examples),
            target_mask=self.target_mask.index_select(0, examples),
            indices=tuple(self.indices[example] for example in examples.tolist()),
        )

    @property
    def source_tokens(self) -> int:
        """The number of source tokens without padding, end symbols included."""
        return int(self.source.mask.sum())

    @property
    def target_tokens(self) -> int:
        """The number of target tokens without padding, end symbols included."""
        return int(self.target_mask.sum())


def move_source(source: Source, device: torch.device | str) -> Source:
    """Copy a source, nested ones included, to another device."""
    values = source.values
    moved = values.to(device) if isinstance(values, Tensor) else tuple(move_source(inner, device) for inner in values)
    return Source(moved, source.mask.to(device))


def collate(
    corpus: Corpus,
    indices: Sequence[int] | Indices,
    symbols: Symbols | None = None,
    *,
    bpe_dropout: BpeDropout | None = None,
    key: int = 0,
) -> Batch:
    """Collate the given examples; `key` seeds the random numbers of `bpe_dropout`."""
    symbols = symbols or Symbols()
    examples = np.asarray(indices, dtype=np.int64)
    sources = read_packed(corpus, corpus.source_ids, corpus.source_offsets, examples)
    targets = read_packed(corpus, corpus.target_ids, corpus.target_offsets, examples)
    if bpe_dropout is not None:
        generator = np.random.Generator(np.random.Philox(key))
        sources = apply_bpe_dropout(sources, bpe_dropout.source, bpe_dropout, generator)
        targets = apply_bpe_dropout(targets, bpe_dropout.target, bpe_dropout, generator)
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
        indices=tuple(examples.tolist()),
    )


class PackedSequences(NamedTuple):
    """Token sequences concatenated without padding."""

    ids: NDArray[np.int32]  # (N,)
    lengths: Indices  # (B,), sum N


def read_packed(corpus: Corpus, ids: Ids, offsets: Indices, examples: Indices) -> PackedSequences:
    """Read the source or target sequences of the given examples; `ids` and `offsets` select the side of the corpus."""
    starts, ends = corpus.bounds(offsets, examples)
    return PackedSequences(corpus.read(ids, starts, ends), ends - starts)


def apply_bpe_dropout(
    sequences: PackedSequences, merges: MergeTable | None, bpe_dropout: BpeDropout, generator: np.random.Generator
) -> PackedSequences:
    """Undo some bpe merges; without a merge table, the sequences are unchanged."""
    if merges is None:
        return sequences
    return PackedSequences(*undo_merges(*sequences, merges, bpe_dropout.probability, bpe_dropout.max_length, generator))


@dataclass(frozen=True)
class Padded:
    """Sequences of different lengths in one padded array."""

    values: NDArray[np.int64]  # (B, L)
    mask: NDArray[np.bool_]  # (B, L), True = token, False = padding


def pad(sequences: PackedSequences, pad_id: int) -> Padded:
    """Pad every sequence to the length of the longest."""
    mask = np.arange(int(sequences.lengths.max())) < sequences.lengths[:, None]
    values = np.full(mask.shape, pad_id, dtype=np.int64)
    values[mask] = sequences.ids
    return Padded(values, mask)


def sorted_batches(corpus: Corpus, batch_tokens: int) -> list[Indices]:
    """Return all examples in length-bucketed batches, the shortest first, for validation."""
    return bucket_by_length(corpus, np.arange(len(corpus)), batch_tokens).batches


class BucketedBatches(NamedTuple):
    """Length-bucketed batches, and how many tokens and padding positions their sources and targets have."""

    batches: list[Indices]
    tokens: int
    padding: int


def bucket_by_length(corpus: Corpus, examples: Indices, batch_tokens: int) -> BucketedBatches:
    """Divide examples into batches of similar lengths, the shortest first."""
    source, target = corpus.source_lengths(examples), corpus.target_lengths(examples)
    order = length_order(source, target)
    source, target = source[order], target[order]
    batches = cut_into_batches(examples[order], np.maximum(source, target), batch_tokens)
    sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    tokens = padding = 0
    for lengths in (source, target) if batches else ():
        tokens += int(lengths.sum())
        padding += int((sizes * np.maximum.reduceat(lengths, starts)).sum()) - int(lengths.sum())
    return BucketedBatches(batches, tokens, padding)


def length_order(source: Indices, target: Indices) -> Indices:
    """Return the order that sorts examples by length, so that neighbors have similar lengths on both sides.

    The primary key is the longer side, which limits the number of examples in a batch. The secondary key is the
    difference of the sides, alternately ascending and descending: a batch that spans two primary keys then has examples
    with similar differences.
    """
    longer, difference = np.maximum(source, target), source - target
    alternating = np.where(longer % 2 == 0, difference, -difference)
    return np.lexsort((alternating, longer))


def cut_into_batches(examples: Indices, longer: Indices, batch_tokens: int) -> list[Indices]:
    """Cut examples, in the given order, into batches with at most `batch_tokens` positions on their longer side."""
    batches: list[Indices] = []
    start = 0
    while start < len(examples):
        limit = max(1, batch_tokens // int(longer[start]))  # the limit if no example were longer than the first
        window = np.maximum.accumulate(longer[start : start + limit])
        fits = window * np.arange(1, len(window) + 1) <= batch_tokens
        size = max(1, int(np.count_nonzero(fits)))  # the product only grows, so this is the largest batch that fits
        batches.append(examples[start : start + size])
        start += size
    return batches
