from __future__ import annotations

import dataclasses
import itertools
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generated_corpus import corpus_of, sentence_lengths
from saccade.data.cache.corpus import Corpus, CorpusStatistics
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import collate, cut_into_batches
from saccade.errors import SaccadeError

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
START = EpochPosition()


def padding_share(corpus: Corpus, batches: list[np.ndarray]) -> float:
    """Return the share of padding in collated batches."""
    collated = [collate(corpus, batch) for batch in batches]
    tokens = sum(batch.source_tokens + batch.target_tokens for batch in collated)
    return 1 - tokens / sum(batch.source.mask.numel() + batch.target_mask.numel() for batch in collated)


def epoch(sampler: BatchSampler, number: int = 0) -> list[list[int]]:
    return [planned.indices.tolist() for planned in sampler.rest_of_epoch(EpochPosition(number))]


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200), seed=st.integers(0, 2**40), pool=st.integers(1, 4))
def test_every_example_once_within_the_token_limit(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, pool: int
) -> None:
    sampler = BatchSampler(corpus_of(lengths), batch_tokens=batch_tokens, seed=seed, pool=pool)
    for number in range(3):
        batches = epoch(sampler, number)
        assert sorted(itertools.chain.from_iterable(batches)) == list(range(len(lengths)))
        for batch in batches:
            size = len(batch) * max(max(lengths[index]) for index in batch)
            assert size <= batch_tokens or len(batch) == 1


@settings(deadline=None, max_examples=50)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200), pool=st.integers(1, 4), data=st.data())
def test_sampling_resumes_at_any_position(
    lengths: list[tuple[int, int]], batch_tokens: int, pool: int, data: st.DataObject
) -> None:
    corpus = dataclasses.replace(corpus_of(lengths), parts=(len(lengths) // 2, len(lengths) - len(lengths) // 2))

    def sampler() -> BatchSampler:
        return BatchSampler(corpus, batch_tokens=batch_tokens, seed=5, temperature=3.0, pool=pool)

    start = EpochPosition(data.draw(st.integers(0, 3)))
    whole = list(sampler().rest_of_epoch(start))
    stop = data.draw(st.integers(0, len(whole) - 1))
    position = whole[stop - 1].next_position if stop else start
    rest = list(sampler().rest_of_epoch(position))
    assert [planned.indices.tolist() for planned in rest] == [planned.indices.tolist() for planned in whole[stop:]]
    assert [planned.next_position for planned in rest] == [planned.next_position for planned in whole[stop:]]
    assert whole[-1].next_position == EpochPosition(start.epoch + 1)


def test_batches_depend_only_on_seed_and_epoch() -> None:
    corpus = corpus_of(sentence_lengths(2000))

    def batches(seed: int, number: int) -> list[list[int]]:
        return epoch(BatchSampler(corpus, batch_tokens=512, seed=seed), number)

    assert batches(1, 0) == batches(1, 0)
    different = [batches(1, 0), batches(1, 1), batches(2, 0), batches(0, 1)]
    assert all(different[first] != different[second] for first in range(4) for second in range(first))


def test_batches_are_composed_differently_in_each_epoch() -> None:
    corpus = corpus_of(sentence_lengths(20_000))
    sampler = BatchSampler(corpus, batch_tokens=2048, seed=0)
    label = np.empty(len(corpus), dtype=np.int64)
    for number, batch in enumerate(epoch(sampler, 1)):
        label[batch] = number
    pairs_in_batches = pairs_again = 0
    for batch in epoch(sampler, 0):
        counts = np.bincount(label[batch])
        pairs_again += int((counts * (counts - 1)).sum())
        pairs_in_batches += len(batch) * (len(batch) - 1)
    assert pairs_again / pairs_in_batches < 0.5


def test_bucketing_keeps_padding_low() -> None:
    corpus = corpus_of(sentence_lengths(20_000))
    sampler = BatchSampler(corpus, batch_tokens=2048, seed=0)
    assert sampler.padding < 0.06
    shuffled = np.random.default_rng(0).permutation(len(corpus))
    unsorted = cut_into_batches(shuffled, corpus.longer_lengths(shuffled), 2048)
    assert padding_share(corpus, unsorted) > 0.5
    assert sampler.batches_per_epoch < 0.6 * len(unsorted)


@pytest.mark.parametrize(("pairs", "exact"), [(100, True), (20_000, True), (100_000, False)])
def test_batches_per_epoch_and_padding_are_estimated(pairs: int, exact: bool) -> None:
    sampler = BatchSampler(corpus_of(sentence_lengths(pairs)), batch_tokens=1024, seed=0)
    batches = [planned.indices for planned in sampler.rest_of_epoch(START)]
    assert (sampler.pools <= 8) == exact
    if exact:
        assert sampler.batches_per_epoch == len(batches)
        assert sampler.padding == pytest.approx(padding_share(sampler.corpus, batches))
    else:
        assert sampler.batches_per_epoch == pytest.approx(len(batches), rel=0.01)
        assert sampler.padding == pytest.approx(padding_share(sampler.corpus, batches), rel=0.05)


def test_corpora_are_sampled_by_weight() -> None:
    corpus = dataclasses.replace(corpus_of(sentence_lengths(3000)), parts=(1000, 2000))
    sampler = BatchSampler(corpus, batch_tokens=512, seed=0, weights=(3, 1))
    for number in range(4):
        examples = np.concatenate([planned.indices for planned in sampler.rest_of_epoch(EpochPosition(number))])
        assert np.count_nonzero(examples < 1000) == 2250
        assert len(examples) == 3000


def test_an_empty_corpus_has_no_batches() -> None:
    sampler = BatchSampler(corpus_of([]), batch_tokens=100, seed=0)
    assert (epoch(sampler), sampler.batches_per_epoch, sampler.padding) == ([], 0, 0.0)


@pytest.mark.parametrize("position", [EpochPosition(0, 99, 0), EpochPosition(0, 0, 10_000)])
def test_position_outside_the_data_is_an_error(position: EpochPosition) -> None:
    sampler = BatchSampler(corpus_of(sentence_lengths(500)), batch_tokens=512, seed=0)
    with pytest.raises(SaccadeError, match="has no batch"):
        list(sampler.rest_of_epoch(position))


@dataclasses.dataclass(frozen=True)
class FakeLargeCorpus(Corpus):
    """A corpus with many examples but no ids: lengths are computed."""

    def __len__(self) -> int:
        return self.statistics.pairs

    def lengths(self, offsets: np.ndarray, examples: np.ndarray) -> np.ndarray:
        return 5 + (examples * 7919 % 31)


def fake_large_corpus(pairs: int) -> Corpus:
    empty = np.empty(0, np.int64)
    statistics = CorpusStatistics(pairs=pairs, longer_tokens=20 * pairs)
    return FakeLargeCorpus(empty, empty, empty, empty, parts=(pairs,), statistics=statistics)


def test_memory_and_time_do_not_grow_with_the_corpus() -> None:
    def first_batches(sampler: BatchSampler) -> Iterator[int]:
        return (
            len(planned.indices) for planned in itertools.islice(sampler.rest_of_epoch(EpochPosition(3, 2, 1)), 200)
        )

    peaks = []
    for pairs in (500_000, 50_000_000):
        sampler = BatchSampler(fake_large_corpus(pairs), batch_tokens=4096, seed=0)
        tracemalloc.start()
        begin = time.perf_counter()
        assert sampler.batches_per_epoch == pytest.approx(pairs * 20 / 4096, rel=0.1)
        assert sum(first_batches(sampler)) > 30_000
        seconds = time.perf_counter() - begin
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert seconds < 5  # about 0.2 s on a laptop
    assert peaks[1] < 1.2 * peaks[0] < 30e6
