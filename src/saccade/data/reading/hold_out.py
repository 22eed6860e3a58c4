"""Holding out training pairs as validation data, in constant memory.

Pairs are selected by a hash of the source, so shuffled or slightly extended data has (almost) the same validation set,
and pairs with equal sources stay together. Only pairs with the smallest hashes can be selected, so only those hashes
are stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.errors import SaccadeError

SPARE_CANDIDATES = 1000  # beyond twice the requested number, because frequent sources are skipped

Keys = NDArray[np.uint64]


def source_keys(pairs: Sequence[Pair]) -> Keys:
    """Return a 64-bit hash of each normalized source, equal in every process."""
    digests = b"".join(
        hashlib.blake2b(normalize(pair.source, "nfkc").encode("utf-8"), digest_size=16).digest()[:8] for pair in pairs
    )
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


class HoldOutSelector:
    """Selects at most `count` pairs by the keys of all sources."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pairs = 0
        self._capacity = 2 * count + SPARE_CANDIDATES
        self._keys = np.empty(0, dtype=np.uint64)
        self._sizes = np.empty(0, dtype=np.int64)

    def add(self, keys: Keys) -> None:
        """Count the source keys of a chunk of pairs."""
        self.pairs += len(keys)
        if len(self._keys) == self._capacity:  # larger keys were dropped before, so their counts would be wrong
            keys = keys[keys <= self._keys[-1]]
        found, sizes = np.unique(keys, return_counts=True)
        self._keys, inverse = np.unique(np.concatenate([self._keys, found]), return_inverse=True)
        self._sizes = np.bincount(inverse, weights=np.concatenate([self._sizes, sizes])).astype(np.int64)
        self._keys, self._sizes = self._keys[: self._capacity], self._sizes[: self._capacity]

    def choose(self) -> Keys:
        """Return the sorted source keys of the pairs to hold out."""
        if self.count >= self.pairs > 0:
            raise SaccadeError(
                f"cannot hold out {self.count:,} of {self.pairs:,} pairs",
                hint="lower --data.hold-out so that training data remains",
            )
        room = self.count
        chosen = np.zeros(len(self._keys), dtype=bool)
        for index, size in enumerate(self._sizes.tolist()):
            # A source that occurs thousands of times ("Yes.") must not fill the validation set: it is skipped.
            if size <= room:
                chosen[index] = True
                room -= size
        return self._keys[chosen]


def held_out_mask(pairs: Sequence[Pair], held_out: Keys) -> NDArray[np.bool_]:
    """Return a mask over pairs: True = the source key is in `held_out`, so the pair is validation data."""
    if not len(held_out):
        return np.zeros(len(pairs), dtype=bool)
    return np.isin(source_keys(pairs), held_out)
