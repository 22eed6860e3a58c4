"""Batches for decoding: token ids of the sources, sorted by length, cut into batches and padded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.interface import Source
from saccade.symbols import Symbols

SourceIds = tuple[list[int], ...]
"""Token ids of one source text, one list per source tokenizer; an ensemble may have several tokenizers."""


def max_ids(source: SourceIds) -> int:
    """Return the number of ids of a source text, by the tokenizer that gives the most."""
    return max(map(len, source))


def collate_sources(batch: Sequence[SourceIds], tokenizers: Sequence[Tokenizer], device: torch.device) -> Source:
    """Return one padded source (B, S) for one tokenizer; a tuple of padded sources for several tokenizers."""
    columns = zip(tokenizers, zip(*batch, strict=True), strict=True)
    sources = tuple(pad_source(column, tokenizer.symbols, device) for tokenizer, column in columns)
    return sources[0] if len(sources) == 1 else Source(sources, sources[0].mask)


def pad_source(sequences: Sequence[Sequence[int]], symbols: Symbols, device: torch.device) -> Source:
    """Return id sequences, an end symbol appended to each, as one padded source (B, S)."""
    lengths = torch.tensor([len(ids) + 1 for ids in sequences])
    mask: Tensor = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, S)
    values = torch.full(mask.shape, symbols.pad)
    values[mask] = torch.tensor([token for ids in sequences for token in (*ids, symbols.end)])
    return Source(values.to(device), mask.to(device))


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield indices in batches of similar length, of at most `batch_tokens` padded tokens, without empty sequences.

    The longest come first, so that a batch that does not fit into memory fails at once.
    """
    order = indices_by_length(lengths)
    first = 0
    while first < len(order):
        last = first + max(1, batch_tokens // lengths[order[first]])
        yield order[first:last]
        first = last


def even_batches(lengths: Sequence[int], batch_tokens: int, workers: int) -> list[list[int]]:
    """Return indices in batches of similar length for parallel workers, all with about as many real tokens.

    The number of batches is the smallest multiple of `workers` that suffices; among the ways to cut them, the largest
    batch is as small as possible. Full batches with a small one at the end would leave workers idle.
    """
    order = indices_by_length(lengths)
    real_tokens = [0, *accumulate(lengths[index] + 1 for index in order)]  # cumulative, end symbols included

    def boundaries(max_real_tokens: int) -> list[int]:
        """Batch boundaries (first 0, last the total) if no batch of several has more than `max_real_tokens`."""
        cuts, first = [0], 0
        while first < len(order):
            last = min(
                first + batch_tokens // lengths[order[first]],
                bisect_right(real_tokens, real_tokens[first] + max_real_tokens) - 1,
            )
            first = max(first + 1, last)
            cuts.append(first)
        return cuts

    count = -(-(len(boundaries(real_tokens[-1])) - 1) // workers) * workers
    smallest = bisect_left(range(real_tokens[-1]), True, key=lambda limit: len(boundaries(limit)) - 1 <= count)
    return [order[first:last] for first, last in pairwise(boundaries(smallest))]


def indices_by_length(lengths: Sequence[int]) -> list[int]:
    """Return the indices of all lengths above 0, the longest first."""
    return sorted((index for index, length in enumerate(lengths) if length), key=lambda index: -lengths[index])
