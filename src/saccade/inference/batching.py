"""Texts as ids, and ids as batches of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.data.tokenizer import Tokenizer
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
    rows = [torch.tensor([*ids, symbols.end]) for ids in sequences]
    values = pad_sequence(rows, batch_first=True, padding_value=symbols.pad).to(device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask: Tensor = torch.arange(values.size(1), device=device) < lengths[:, None]
    return Source(values, mask)


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, longest first, so that what does not fit fails at once; empty rows are left out."""
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
