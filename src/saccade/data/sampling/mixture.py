"""Sampling from several corpora: how many examples of each corpus an epoch has, and which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from saccade.data.sampling.permutation import permute
from saccade.errors import SaccadeError

CORPUS_SHUFFLE = 2  # key component that makes these shuffles independent of those in `batch_sampler.py`

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """Maps the draws of an epoch (as many as there are pairs) to examples; each corpus gets its quota of draws.

    A corpus continues in an epoch where it stopped in the last one, and repeats only after all its examples were used.
    """

    sizes: tuple[int, ...]
    quotas: tuple[int, ...]
    seed: int

    def __len__(self) -> int:
        return sum(self.quotas)

    def examples(self, draws: Indices, epoch: int) -> Indices:
        """Return the example indices of the given draws of an epoch; examples are counted over all corpora."""
        ends = np.cumsum(self.quotas)
        corpus_of_draw = np.searchsorted(ends, draws, side="right")
        examples = np.empty(len(draws), dtype=np.int64)
        for corpus, first in enumerate(accumulate(self.sizes[:-1], initial=0)):
            (selected,) = np.nonzero(corpus_of_draw == corpus)
            if len(selected):
                started = int(ends[corpus]) - self.quotas[corpus]
                examples[selected] = first + self.examples_of_corpus(corpus, draws[selected] - started, epoch)
        return examples

    def examples_of_corpus(self, corpus: int, draws: Indices, epoch: int) -> Indices:
        """Return the example indices within one corpus; `draws` count from its first draw in this epoch."""
        size, quota = self.sizes[corpus], self.quotas[corpus]
        if quota == size:  # one full pass per epoch: the batch sampler already shuffles the draws
            return draws
        passes, positions = np.divmod(epoch * quota + draws, size)
        return permute(positions, size, (self.seed, CORPUS_SHUFFLE, corpus), variants=passes)


def make_mixture(
    sizes: Sequence[int], *, seed: int, weights: Sequence[float] = (), temperature: float = 1.0
) -> Mixture:
    """Mix corpora of these sizes by weights or by temperature."""
    return Mixture(tuple(sizes), find_quotas(sizes, weights, temperature), seed)


def find_quotas(sizes: Sequence[int], weights: Sequence[float] = (), temperature: float = 1.0) -> tuple[int, ...]:
    """Return the examples per epoch of each corpus: their sum is the total size, and each non-empty corpus has one."""
    if not weights and temperature == 1:
        return tuple(sizes)
    if weights and len(weights) != len(sizes):
        raise SaccadeError(
            f"{len(weights)} weights are given for {len(sizes)} corpora",
            hint="give --data.weights one number for each source file",
        )
    # An empty corpus gets no examples, whatever its weight.
    wanted = [
        0.0 if size == 0 else weights[corpus] if weights else size ** (1 / temperature)
        for corpus, size in enumerate(sizes)
    ]
    total, sum_wanted = sum(sizes), sum(wanted)
    exact = [total * part / sum_wanted if part else 0.0 for part in wanted]
    quotas = [max(int(share), int(part > 0)) for share, part in zip(exact, wanted, strict=True)]
    # Round the largest remainders up. If the minimum of one example made the sum too large, reduce the largest quotas.
    for corpus in sorted(range(len(sizes)), key=lambda corpus: quotas[corpus] - exact[corpus]):
        if sum(quotas) < total and wanted[corpus]:
            quotas[corpus] += 1
    while sum(quotas) > total:
        quotas[quotas.index(max(quotas))] -= 1
    return tuple(quotas)
