"""The order of the data: a pure function of seed, epoch and index, worked out in the memory of one pool."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from saccade.data.cache.corpus import Corpus
from saccade.data.config import DataConfig
from saccade.data.sampling.batches import Bucketed, Indices, bucketed
from saccade.data.sampling.mixture import mix
from saccade.data.sampling.permutation import permute
from saccade.errors import SaccadeError

# Batches' worth of examples that are sorted together. More means less padding, but an example meets more of the same
# others in the next epoch. On Multi30k (en-de, 4096 tokens): 16 give 9.6 % padding and 10 % of the others again,
# 64 give 4.8 % and 34 %, all at once 3.1 % and 59 %.
POOL = 64
SAMPLED_POOLS = 8  # the number of batches and the padding of a long epoch are judged by its first pools
EXAMPLES, BATCHES = 0, 1  # keep the keys of the two shuffles apart


@dataclass(frozen=True)
class Place:
    """Where in the order of the data a run stands; plain numbers that a checkpoint keeps."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class Planned(NamedTuple):
    """One batch as rows of the corpus, and the place after it: behind the last batch lies the next epoch."""

    rows: Indices
    following: Place


class Sample(NamedTuple):
    """What an epoch is like, judged by its first pools."""

    batches: int
    padding: float


class Order:
    """Every epoch's batches, worked out pool by pool.

    The examples of an epoch are shuffled and dealt into pools; a pool is sorted by length and cut into batches, and its
    batches are shuffled. An example that is longer than `batch_tokens` is a batch of its own.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        seed: int,
        weights: Sequence[float] = (),
        temperature: float = 1.0,
        pool: int = POOL,
    ) -> None:
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.mixture = mix(corpus.parts, seed=seed, weights=weights, temperature=temperature)
        pools = math.ceil(corpus.statistics.longer_tokens / (batch_tokens * pool))
        self.pools = min(pools, len(self.mixture))  # no pool is empty

    @classmethod
    def of(cls, corpus: Corpus, config: DataConfig, seed: int) -> Order:
        """The order that the settings of a run ask for."""
        return cls(
            corpus,
            batch_tokens=config.batch_tokens,
            seed=seed,
            weights=config.weights,
            temperature=config.temperature,
        )

    def rest_of_epoch(self, place: Place) -> Iterator[Planned]:
        """The batches from a place to the end of its epoch."""
        for pool in range(place.pool, self.pools):
            batches = self.batches_of(place.epoch, pool)
            first = place.batch if pool == place.pool else 0
            if first >= len(batches):
                raise self._nowhere(place)
            for number in range(first, len(batches)):
                yield Planned(batches[number], self._after(place.epoch, pool, number, len(batches)))
        if place.pool >= max(self.pools, 1):
            raise self._nowhere(place)

    def batches_of(self, epoch: int, pool: int) -> list[Indices]:
        """The batches of one pool, in order."""
        batches = self._bucketed(epoch, pool).batches
        places = permute(np.arange(len(batches)), len(batches), (self.seed, BATCHES, epoch, pool))
        return [batches[place] for place in places]

    @property
    def batches_an_epoch(self) -> int:
        """How many batches the first epoch has; of a long one, what its first pools let expect."""
        return self._sample.batches

    @property
    def padding(self) -> float:
        """The share of padding over both sides, in the same pools."""
        return self._sample.padding

    @cached_property
    def _sample(self) -> Sample:
        pools = [self._bucketed(0, pool) for pool in range(min(self.pools, SAMPLED_POOLS))]
        if not pools:
            return Sample(0, 0.0)
        batches = sum(len(pool.batches) for pool in pools)
        real, padded = sum(pool.real for pool in pools), sum(pool.padded for pool in pools)
        return Sample(round(batches * self.pools / len(pools)), padded / (real + padded))

    def _bucketed(self, epoch: int, pool: int) -> Bucketed:
        draws = len(self.mixture)
        positions = np.arange(pool * draws // self.pools, (pool + 1) * draws // self.pools)
        shuffled = permute(positions, draws, (self.seed, EXAMPLES, epoch))
        return bucketed(self.corpus, self.mixture.rows(shuffled, epoch), self.batch_tokens)

    def _after(self, epoch: int, pool: int, batch: int, batches: int) -> Place:
        if batch + 1 < batches:
            return Place(epoch, pool, batch + 1)
        if pool + 1 < self.pools:
            return Place(epoch, pool + 1, 0)
        return Place(epoch + 1, 0, 0)

    def _nowhere(self, place: Place) -> SaccadeError:
        return SaccadeError(
            f"epoch {place.epoch} of this data has no batch {place.batch} in pool {place.pool}",
            do="the data or its settings are not those of the run: give back what the run was started with",
        )
