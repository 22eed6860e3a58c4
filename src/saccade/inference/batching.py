"""Texts as ids, and ids as batches of like length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.interface import Source
from saccade.symbols import Symbols

Reading = tuple[list[int], ...]
"""The ids of one source text; several for an ensemble whose members read it in different pieces, one a member."""


def longest(reading: Reading) -> int:
    """How many ids a text has, by the tokenizer that makes most of it."""
    return max(map(len, reading))


def source_from(readings: Sequence[Reading], tokenizers: Sequence[Tokenizer], device: torch.device) -> Source:
    """One padded source of what one tokenizer read; a tuple of sources where there are several tokenizers."""
    columns = zip(tokenizers, zip(*readings, strict=True), strict=True)
    sources = tuple(padded_source(column, tokenizer.symbols, device) for tokenizer, column in columns)
    return sources[0] if len(sources) == 1 else Source(sources, sources[0].mask)


def padded_source(sequences: Sequence[Sequence[int]], symbols: Symbols, device: torch.device) -> Source:
    """Id sequences, each ended by the end symbol, as one padded source."""
    lengths = torch.tensor([len(ids) + 1 for ids in sequences])
    mask: Tensor = torch.arange(int(lengths.max())) < lengths[:, None]
    values = torch.full(mask.shape, symbols.pad)
    values[mask] = torch.tensor([token for ids in sequences for token in (*ids, symbols.end)])
    return Source(values.to(device), mask.to(device))


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, longest first, so that what does not fit fails at once; empty rows are left out."""
    order = by_length(lengths)
    first = 0
    while first < len(order):
        last = first + max(1, batch_tokens // lengths[order[first]])
        yield order[first:last]
        first = last


def even_batches(lengths: Sequence[int], batch_tokens: int, workers: int) -> list[list[int]]:
    """The same for workers side by side: no more batches than are needed to give each worker as many, and the largest,
    in real tokens, as small as can be. Full batches with a small one at the end would leave workers without work.
    """
    order = by_length(lengths)
    done = [0, *accumulate(lengths[row] + 1 for row in order)]  # real tokens, with the end of each

    def cuts(most: int) -> list[int]:
        """Where batches begin, and where the last ends, if none of several rows has more than so many real tokens."""
        found, first = [0], 0
        while first < len(order):
            last = min(first + batch_tokens // lengths[order[first]], bisect_right(done, done[first] + most) - 1)
            first = max(first + 1, last)
            found.append(first)
        return found

    batches = -(-(len(cuts(done[-1])) - 1) // workers) * workers
    fewest = bisect_left(range(done[-1]), True, key=lambda most: len(cuts(most)) - 1 <= batches)
    return [order[first:last] for first, last in pairwise(cuts(fewest))]


def by_length(lengths: Sequence[int]) -> list[int]:
    """The rows that are not empty, longest first."""
    return sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
