"""Setting training pairs apart as validation data, in constant memory, by the texts alone.

Pairs are chosen by a hash of the source, so reordered or slightly grown data keeps (almost) the same validation set,
and pairs with one source stay together. Only the smallest hashes can be chosen, so only they are remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.errors import SaccadeError

SPARE = 1000  # candidates beyond twice the number asked for: some sources occur too often to be taken

Keys = NDArray[np.uint64]


def source_keys(pairs: Sequence[Pair]) -> Keys:
    """A key of each source, the same in every process and for texts that differ only in what normalisation removes."""
    digests = b"".join(
        hashlib.blake2b(normalize(pair.source, "nfkc").encode("utf-8"), digest_size=16).digest()[:8] for pair in pairs
    )
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


class HoldOut:
    """Goes through the keys of all sources and chooses at most `count` pairs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pairs = 0
        self._most = 2 * count + SPARE
        self._keys = np.empty(0, dtype=np.uint64)
        self._sizes = np.empty(0, dtype=np.int64)

    def add(self, keys: Keys) -> None:
        """Count the keys of some pairs."""
        self.pairs += len(keys)
        if len(self._keys) == self._most:  # a key that was once beyond the last one can never come back
            keys = keys[keys <= self._keys[-1]]
        found, sizes = np.unique(keys, return_counts=True)
        self._keys, places = np.unique(np.concatenate([self._keys, found]), return_inverse=True)
        self._sizes = np.bincount(places, weights=np.concatenate([self._sizes, sizes])).astype(np.int64)
        self._keys, self._sizes = self._keys[: self._most], self._sizes[: self._most]

    def choose(self) -> Keys:
        """The keys of the pairs to hold out, sorted."""
        if self.count >= self.pairs > 0:
            raise SaccadeError(
                f"cannot hold out {self.count:,} of {self.pairs:,} pairs",
                do="lower --data.hold-out so that something is left to train on",
            )
        room = self.count
        chosen = np.zeros(len(self._keys), dtype=bool)
        for place, size in enumerate(self._sizes.tolist()):
            # A source that occurs thousands of times ("Yes.") must not flood the validation set: it is passed over.
            if size <= room:
                chosen[place] = True
                room -= size
        return self._keys[chosen]


def are_held(pairs: Sequence[Pair], held: Keys) -> NDArray[np.bool_]:
    """Which of the pairs are held out."""
    if not len(held):
        return np.zeros(len(pairs), dtype=bool)
    return np.isin(source_keys(pairs), held)
