"""Batch sampler: the batches of every epoch as a pure function of (seed, epoch, index), in the memory of one pool."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from saccade.data.cache.corpus import Corpus
from saccade.data.config import DataConfig
from saccade.data.sampling.batches import BucketedBatches, Indices, bucket_by_length
from saccade.data.sampling.mixture import make_mixture
from saccade.data.sampling.permutation import permute
from saccade.errors import SaccadeError

# The size of a pool, in batches: its examples are sorted by length together. A larger pool means less padding, but more
# examples share a batch with the same examples again in the next epoch. On Multi30k (en-de, 4096 tokens):
# 16 batches give 9.6 % padding and 10 % repeated neighbors, 64 give 4.8 % and 34 %, one pool for all 3.1 % and 59 %.
POOL_BATCHES = 64
SAMPLED_POOLS = 8  # the batch count and the padding of a long epoch are estimated from its first pools
EXAMPLE_SHUFFLE, BATCH_SHUFFLE = 0, 1  # key components that make the two shuffles independent


@dataclass(frozen=True)
class EpochPosition:
    """The position of a batch in the training data; checkpoints store these integers."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class PlannedBatch(NamedTuple):
    """The example indices of a batch, and the position after it (after the last batch: the start of the next epoch)."""

    indices: Indices
    next_position: EpochPosition


class EpochEstimate(NamedTuple):
    """Batch count and padding share of an epoch, estimated from its first pools."""

    batches: int
    padding: float


class BatchSampler:
    """Length-bucketed batches of every epoch, computed pool by pool.

    The examples of an epoch are shuffled and divided into pools. Each pool is sorted by length and cut into batches,
    and its batches are shuffled. An example longer than `batch_tokens` forms a batch alone.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        seed: int,
        weights: Sequence[float] = (),
        temperature: float = 1.0,
        pool: int = POOL_BATCHES,
    ) -> None:
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.mixture = make_mixture(corpus.parts, seed=seed, weights=weights, temperature=temperature)
        pools = math.ceil(corpus.statistics.longer_tokens / (batch_tokens * pool))
        self.pools = min(pools, len(self.mixture))  # no pool is empty

    @classmethod
    def from_config(cls, corpus: Corpus, config: DataConfig, seed: int) -> BatchSampler:
        """Return the sampler that the data config describes."""
        return cls(
            corpus,
            batch_tokens=config.batch_tokens,
            seed=seed,
            weights=config.weights,
            temperature=config.temperature,
        )

    def rest_of_epoch(self, position: EpochPosition) -> Iterator[PlannedBatch]:
        """Yield the batches from a position to the end of its epoch."""
        for pool in range(position.pool, self.pools):
            batches = self.pool_batches(position.epoch, pool)
            first = position.batch if pool == position.pool else 0
            if first >= len(batches):
                raise self._invalid(position)
            for number in range(first, len(batches)):
                yield PlannedBatch(batches[number], self._next(position.epoch, pool, number, len(batches)))
        if position.pool >= max(self.pools, 1):
            raise self._invalid(position)

    def pool_batches(self, epoch: int, pool: int) -> list[Indices]:
        """Return the batches of one pool in training order."""
        batches = self._bucketed(epoch, pool).batches
        order = permute(np.arange(len(batches)), len(batches), (self.seed, BATCH_SHUFFLE, epoch, pool))
        return [batches[index] for index in order]

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in the first epoch; estimated from its first pools if the epoch is long."""
        return self._estimate.batches

    @property
    def padding(self) -> float:
        """The share of padding in source and target, estimated from the first pools of the first epoch."""
        return self._estimate.padding

    @cached_property
    def _estimate(self) -> EpochEstimate:
        pools = [self._bucketed(0, pool) for pool in range(min(self.pools, SAMPLED_POOLS))]
        if not pools:
            return EpochEstimate(0, 0.0)
        batches = sum(len(pool.batches) for pool in pools)
        tokens, padding = sum(pool.tokens for pool in pools), sum(pool.padding for pool in pools)
        return EpochEstimate(round(batches * self.pools / len(pools)), padding / (tokens + padding))

    def _bucketed(self, epoch: int, pool: int) -> BucketedBatches:
        draws = len(self.mixture)
        positions = np.arange(pool * draws // self.pools, (pool + 1) * draws // self.pools)
        shuffled = permute(positions, draws, (self.seed, EXAMPLE_SHUFFLE, epoch))
        return bucket_by_length(self.corpus, self.mixture.examples(shuffled, epoch), self.batch_tokens)

    def _next(self, epoch: int, pool: int, batch: int, batches: int) -> EpochPosition:
        if batch + 1 < batches:
            return EpochPosition(epoch, pool, batch + 1)
        if pool + 1 < self.pools:
            return EpochPosition(epoch, pool + 1, 0)
        return EpochPosition(epoch + 1, 0, 0)

    def _invalid(self, position: EpochPosition) -> SaccadeError:
        return SaccadeError(
            f"epoch {position.epoch} of this data has no batch {position.batch} in pool {position.pool}",
            hint="the data or the data settings differ from those of the run: resume with the original ones",
        )
