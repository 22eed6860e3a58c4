"""Subword regularization similar to BPE-dropout: tokens are randomly split into the two tokens they were merged from.

A model that always reads "▁houses" as one token does not learn that it consists of "▁house" and "s". BPE-dropout
(Provilkov et al. 2020) skips each merge of a word with some probability. Departure: here merges are undone, the last
one first. The text stays the same, and the ids in the token cache plus one merge table are enough to do it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers

Ids = NDArray[np.int32]
Lengths = NDArray[np.int64]

NOT_MERGED = -1  # table entry of a token that no merge produces


class MergeTable(NamedTuple):
    """The two tokens that each token was merged from."""

    left: Ids  # (V,)
    right: Ids  # (V,)


class BpeDropout(NamedTuple):
    """Merge tables of source and target, and the probability that a merge is undone in training."""

    source: MergeTable | None  # None: this side is not changed
    target: MergeTable | None
    probability: float
    max_length: int  # in tokens, the end symbol included: a sequence that would become longer stays unchanged


def bpe_dropout_from_config(config: DataConfig, tokenizers: Tokenizers) -> BpeDropout | None:
    """Return the BPE-dropout of `--data.bpe-dropout`; None if it is 0."""
    if not config.bpe_dropout:
        return None
    source, target = (merge_table(tokenizer) if tokenizer.kind == "bpe" else None for tokenizer in tokenizers)
    return BpeDropout(source, target, config.bpe_dropout, config.max_length + 1)


def merge_table(tokenizer: Tokenizer) -> MergeTable:
    """Return the merge table of a bpe vocabulary."""
    ids = {piece: token for token, piece in enumerate(tokenizer.vocabulary)}
    left, right = (np.full(tokenizer.size, NOT_MERGED, dtype=np.int32) for _ in range(2))
    for first, second in reversed(tokenizer.merges):  # if several merges make one piece, bpe applies the first
        left[ids[first + second]], right[ids[first + second]] = ids[first], ids[second]
    return MergeTable(left, right)


def undo_merges(
    ids: Ids, lengths: Lengths, merges: MergeTable, probability: float, max_length: int, generator: np.random.Generator
) -> tuple[Ids, Lengths]:
    """Split each token of packed sequences with the given probability, and then its parts, recursively."""
    sequence_of_id = np.repeat(np.arange(len(lengths)), lengths)
    new, sequence_of_new, splittable = ids, sequence_of_id, np.ones(len(ids), dtype=bool)
    while True:
        chosen = splittable & (merges.left[new] != NOT_MERGED) & (generator.random(len(new)) < probability)
        if not chosen.any():
            break
        counts = 1 + chosen
        first = np.cumsum(counts) - counts  # the new position of each token, or of its left part
        split = new[chosen]
        new, sequence_of_new, splittable = (np.repeat(column, counts) for column in (new, sequence_of_new, chosen))
        new[first[chosen]], new[first[chosen] + 1] = merges.left[split], merges.right[split]
    new_lengths = np.bincount(sequence_of_new, minlength=len(lengths))
    too_long = new_lengths > max_length
    if too_long.any():  # rare: restore these sequences
        sequences = [
            ids[sequence_of_id == index] if too_long[index] else new[sequence_of_new == index]
            for index in range(len(lengths))
        ]
        return np.concatenate(sequences), np.where(too_long, lengths, new_lengths)
    return new, new_lengths
