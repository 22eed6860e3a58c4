"""Token-bucketed batches: the order of every epoch is a pure function of seed and epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.data.corpus import Corpus
from saccade.interface import Source
from saccade.symbols import Symbols

# Batches' worth of examples that are sorted together. More means less padding, but an example meets more of the same
# others in the next epoch. On Multi30k (en-de, 4096 tokens): 16 give 9.6 % padding and 10 % of the others again,
# 64 give 4.8 % and 34 %, all at once 3.1 % and 59 %.
POOL = 64

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


def collate(corpus: Corpus, indices: Sequence[int] | Indices, symbols: Symbols | None = None) -> Batch:
    """The batch of the given examples."""
    symbols = symbols or Symbols()
    rows = np.asarray(indices, dtype=np.int64)
    source = pad(corpus.source_ids, corpus.source_offsets, rows, symbols.pad)
    target = pad(corpus.target_ids, corpus.target_offsets, rows, symbols.pad)
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


@dataclass(frozen=True)
class Padded:
    """Sequences of different lengths in one rectangle."""

    values: NDArray[np.int64]  # (B, L)
    mask: NDArray[np.bool_]  # (B, L), True = real


def pad(ids: NDArray[np.int32], offsets: NDArray[np.int64], rows: Indices, filler: int) -> Padded:
    """The given rows of a flat array, each filled up to the longest."""
    starts, ends = offsets[rows], offsets[rows + 1]
    places = starts[:, None] + np.arange(int((ends - starts).max()))
    mask = places < ends[:, None]
    values = np.full(mask.shape, filler, dtype=np.int64)
    values[mask] = ids[places[mask]]
    return Padded(values, mask)


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch in order, and the share of padding over both sides."""

    batches: list[Indices]
    padding: float

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.batches)


def plan_epoch(corpus: Corpus, *, batch_tokens: int, seed: int, epoch: int, pool: int = POOL) -> EpochPlan:
    """Every example once, in batches of like lengths, in an order that (seed, epoch) decides.

    Examples are shuffled, dealt into pools, sorted by length within a pool and cut into batches, and the batches are
    shuffled. An example that is longer than `batch_tokens` is a batch of its own.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch))))
    order = generator.permutation(len(corpus))
    pools = math.ceil(corpus.longer_lengths.sum() / (batch_tokens * pool))
    batches: list[Indices] = []
    for examples in np.array_split(order, max(pools, 1)):
        batches += cut(corpus, by_length(corpus, examples), batch_tokens)
    shuffled = [batches[place] for place in generator.permutation(len(batches))]
    return EpochPlan(shuffled, padding_share(corpus, shuffled))


def batches_in_order(corpus: Corpus, batch_tokens: int) -> list[Indices]:
    """Every example once, in batches of like lengths, the shortest first: for validation."""
    return cut(corpus, by_length(corpus, np.arange(len(corpus))), batch_tokens)


def by_length(corpus: Corpus, examples: Indices) -> Indices:
    """The examples sorted so that neighbours are alike on both sides; equal ones stay in their order.

    First by the longer side, which decides how many fit into a batch; then by the difference of the sides, up and down
    in turn, so that a batch that reaches into the next length finds examples of the same difference there.
    """
    source, target = corpus.source_lengths[examples], corpus.target_lengths[examples]
    longer, difference = np.maximum(source, target), source - target
    in_turn = np.where(longer % 2 == 0, difference, -difference)
    return examples[np.lexsort((in_turn, longer))]


def cut(corpus: Corpus, examples: Indices, batch_tokens: int) -> list[Indices]:
    """The examples, in the order given, cut into batches as large as `batch_tokens` allows."""
    longer = corpus.longer_lengths[examples]
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


def padding_share(corpus: Corpus, batches: Sequence[Indices]) -> float:
    """The share of padding among all positions of both sides."""
    if not batches:
        return 0.0
    order = np.concatenate(batches)
    rows = np.array([len(batch) for batch in batches])
    starts = np.cumsum(rows) - rows
    real = positions = 0
    for lengths in (corpus.source_lengths[order], corpus.target_lengths[order]):
        real += int(lengths.sum())
        positions += int((rows * np.maximum.reduceat(lengths, starts)).sum())
    return 1.0 - real / positions
