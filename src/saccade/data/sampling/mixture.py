"""Several corpora in one epoch: how many examples each gives, and which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from saccade.data.sampling.permutation import permute
from saccade.errors import SaccadeError

CORPUS = 2  # keeps the keys of this file apart from those of `order.py`

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """The draws of every epoch: as many as there are pairs, dealt to the corpora by their quotas.

    A corpus goes on in one epoch where it stopped in the last, and starts again only when all of it has been seen.
    """

    sizes: tuple[int, ...]
    quotas: tuple[int, ...]
    seed: int

    def __len__(self) -> int:
        return sum(self.quotas)

    def rows(self, draws: Indices, epoch: int) -> Indices:
        """The rows of the store that some draws of an epoch stand for."""
        ends = np.cumsum(self.quotas)
        owners = np.searchsorted(ends, draws, side="right")
        rows = np.empty(len(draws), dtype=np.int64)
        for corpus, first in enumerate(accumulate(self.sizes[:-1], initial=0)):
            (mine,) = np.nonzero(owners == corpus)
            if len(mine):
                started = int(ends[corpus]) - self.quotas[corpus]
                rows[mine] = first + self.places(corpus, draws[mine] - started, epoch)
        return rows

    def places(self, corpus: int, draws: Indices, epoch: int) -> Indices:
        """The places within one corpus, given draws counted from its first one in this epoch."""
        size, quota = self.sizes[corpus], self.quotas[corpus]
        if quota == size:  # a whole pass an epoch: the order of the epoch shuffles enough
            return draws
        passes, places = np.divmod(epoch * quota + draws, size)
        return permute(places, size, (self.seed, CORPUS, corpus), variants=passes)


def mix(sizes: Sequence[int], *, seed: int, weights: Sequence[float] = (), temperature: float = 1.0) -> Mixture:
    """The mixture that the settings ask for, of corpora with these sizes."""
    return Mixture(tuple(sizes), find_quotas(sizes, weights, temperature), seed)


def find_quotas(sizes: Sequence[int], weights: Sequence[float] = (), temperature: float = 1.0) -> tuple[int, ...]:
    """How many examples each corpus gives to an epoch: their sum is that of the sizes, and none is forgotten."""
    if not weights and temperature == 1:
        return tuple(sizes)
    if weights and len(weights) != len(sizes):
        raise SaccadeError(
            f"{len(weights)} weights are given for {len(sizes)} corpora", do="give --data.weights one number a source"
        )
    # An empty corpus gives nothing, whatever its weight.
    wanted = [
        0.0 if size == 0 else weights[corpus] if weights else size ** (1 / temperature)
        for corpus, size in enumerate(sizes)
    ]
    total, sum_wanted = sum(sizes), sum(wanted)
    exact = [total * part / sum_wanted if part else 0.0 for part in wanted]
    quotas = [max(int(share), int(part > 0)) for share, part in zip(exact, wanted, strict=True)]
    # The largest remainders are rounded up. If the many small ones that had to get one took too much, the largest pay.
    for corpus in sorted(range(len(sizes)), key=lambda corpus: quotas[corpus] - exact[corpus]):
        if sum(quotas) < total and wanted[corpus]:
            quotas[corpus] += 1
    while sum(quotas) > total:
        quotas[quotas.index(max(quotas))] -= 1
    return tuple(quotas)
