"""Corpora in memory for tests of batches and their order."""

from __future__ import annotations

import numpy as np

from saccade.data.cache.corpus import Corpus, corpus_of_arrays
from saccade.symbols import Symbols


def corpus_of(lengths: list[tuple[int, int]] | np.ndarray) -> Corpus:
    """A corpus with sides of the given lengths; every token tells where it is from."""
    table = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    offsets = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(table, axis=0)])
    ids = [np.arange(total, dtype=np.int32) % 1000 + 4 for total in offsets[-1]]
    for side in (0, 1):
        ids[side][offsets[1:, side] - 1] = Symbols.end
    return corpus_of_arrays(ids[0], offsets[:, 0].copy(), ids[1], offsets[:, 1].copy())


def sentence_lengths(count: int) -> np.ndarray:
    """Lengths spread like those of sentences, with sides that differ a little."""
    generator = np.random.default_rng(3)
    source = np.clip(generator.gamma(8, 2, count).astype(np.int64), 2, 80)
    return np.stack([source, np.maximum(2, source + generator.integers(-3, 4, count))], axis=1)
