"""Subword regularisation: now and then a token is split into the two that it was merged from.

A model that always reads "▁houses" in one piece never learns what "▁house" and "s" have to do with it. Provilkov et al.
2020 (BPE-dropout) leave out each merge of a word with some probability. Here merges are undone instead, from the last
one on: the text stays the same, and the ids of the token cache and two tables are all that is needed.
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

WHOLE = -1  # stands for the parts of a token that was not merged from any


class Parts(NamedTuple):
    """The two tokens that each token was merged from."""

    left: Ids  # (V,)
    right: Ids  # (V,)


class Splitting(NamedTuple):
    """How the tokens of both sides are split in training."""

    source: Parts | None  # None: never
    target: Parts | None
    probability: float
    longest: int  # tokens, the end included: a text that would become longer is left as it is


def splitting_of(config: DataConfig, tokenizers: Tokenizers) -> Splitting | None:
    """What the settings ask for; None for nothing."""
    if not config.split:
        return None
    source, target = (parts_of(tokenizer) if tokenizer.kind == "bpe" else None for tokenizer in tokenizers)
    return Splitting(source, target, config.split, config.max_length + 1)


def parts_of(tokenizer: Tokenizer) -> Parts:
    """The parts of every token of a bpe vocabulary."""
    ids = {piece: token for token, piece in enumerate(tokenizer.vocabulary)}
    left, right = (np.full(tokenizer.size, WHOLE, dtype=np.int32) for _ in range(2))
    for first, second in reversed(tokenizer.merges):  # the first merge that makes a piece is the one that is used
        left[ids[first + second]], right[ids[first + second]] = ids[first], ids[second]
    return Parts(left, right)


def split_tokens(
    ids: Ids, lengths: Lengths, parts: Parts, probability: float, longest: int, generator: np.random.Generator
) -> tuple[Ids, Lengths]:
    """Texts laid end to end, with each token split with that probability, and its parts again."""
    text = np.repeat(np.arange(len(lengths)), lengths)
    new, of_text, fresh = ids, text, np.ones(len(ids), dtype=bool)
    while True:
        chosen = fresh & (parts.left[new] != WHOLE) & (generator.random(len(new)) < probability)
        if not chosen.any():
            break
        counts = 1 + chosen
        first = np.cumsum(counts) - counts  # where each token, or the first part of it, comes to stand
        split = new[chosen]
        new, of_text, fresh = (np.repeat(column, counts) for column in (new, of_text, chosen))
        new[first[chosen]], new[first[chosen] + 1] = parts.left[split], parts.right[split]
    grown = np.bincount(of_text, minlength=len(lengths))
    too_long = grown > longest
    if too_long.any():  # rare: put these back
        pieces = [ids[text == row] if too_long[row] else new[of_text == row] for row in range(len(lengths))]
        return np.concatenate(pieces), np.where(too_long, lengths, grown)
    return new, grown
