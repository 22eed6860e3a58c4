"""Synthetic in-memory corpora for tests of batches and the batch sampler."""

from __future__ import annotations

import numpy as np

from saccade.data.cache.corpus import Corpus, corpus_from_arrays
from saccade.symbols import Symbols


def corpus_of(lengths: list[tuple[int, int]] | np.ndarray) -> Corpus:
    """Make a corpus whose sources and targets have the given lengths (N, 2); ids count up, modulo 1000."""
    table = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    offsets = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(table, axis=0)])
    ids = [np.arange(total, dtype=np.int32) % 1000 + 4 for total in offsets[-1]]
    for side in (0, 1):
        ids[side][offsets[1:, side] - 1] = Symbols.end
    return corpus_from_arrays(ids[0], offsets[:, 0].copy(), ids[1], offsets[:, 1].copy())


def sentence_lengths(count: int) -> np.ndarray:
    """Draw random source and target lengths (count, 2), distributed like those of sentences."""
    generator = np.random.default_rng(3)
    source = np.clip(generator.gamma(8, 2, count).astype(np.int64), 2, 80)
    return np.stack([source, np.maximum(2, source + generator.integers(-3, 4, count))], axis=1)
