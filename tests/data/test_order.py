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
from saccade.data.sampling.batch_sampler import Order, Place
from saccade.data.sampling.batches import collate, cut
from saccade.errors import SaccadeError

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
START = Place()


def padding_share(corpus: Corpus, batches: list[np.ndarray]) -> float:
    """The share of padding in batches that are really made."""
    made = [collate(corpus, batch) for batch in batches]
    real = sum(batch.source_tokens + batch.target_tokens for batch in made)
    return 1 - real / sum(batch.source.mask.numel() + batch.target_mask.numel() for batch in made)


def epoch(order: Order, number: int = 0) -> list[list[int]]:
    return [planned.rows.tolist() for planned in order.rest_of_epoch(Place(number))]


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200), seed=st.integers(0, 2**40), pool=st.integers(1, 4))
def test_every_example_once_and_no_batch_too_large(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, pool: int
) -> None:
    order = Order(corpus_of(lengths), batch_tokens=batch_tokens, seed=seed, pool=pool)
    for number in range(3):
        batches = epoch(order, number)
        assert sorted(itertools.chain.from_iterable(batches)) == list(range(len(lengths)))
        for batch in batches:
            size = len(batch) * max(max(lengths[index]) for index in batch)
            assert size <= batch_tokens or len(batch) == 1


@settings(deadline=None, max_examples=50)
@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200), pool=st.integers(1, 4), data=st.data())
def test_the_rest_from_any_place_is_the_rest(
    lengths: list[tuple[int, int]], batch_tokens: int, pool: int, data: st.DataObject
) -> None:
    corpus = dataclasses.replace(corpus_of(lengths), parts=(len(lengths) // 2, len(lengths) - len(lengths) // 2))

    def order() -> Order:
        return Order(corpus, batch_tokens=batch_tokens, seed=5, temperature=3.0, pool=pool)

    start = Place(data.draw(st.integers(0, 3)))
    whole = list(order().rest_of_epoch(start))
    stop = data.draw(st.integers(0, len(whole) - 1))
    place = whole[stop - 1].following if stop else start
    rest = list(order().rest_of_epoch(place))
    assert [planned.rows.tolist() for planned in rest] == [planned.rows.tolist() for planned in whole[stop:]]
    assert [planned.following for planned in rest] == [planned.following for planned in whole[stop:]]
    assert whole[-1].following == Place(start.epoch + 1)


def test_it_is_a_function_of_seed_and_epoch() -> None:
    corpus = corpus_of(sentence_lengths(2000))

    def batches(seed: int, number: int) -> list[list[int]]:
        return epoch(Order(corpus, batch_tokens=512, seed=seed), number)

    assert batches(1, 0) == batches(1, 0)
    different = [batches(1, 0), batches(1, 1), batches(2, 0), batches(0, 1)]
    assert all(different[first] != different[second] for first in range(4) for second in range(first))


def test_epochs_mix_the_company() -> None:
    corpus = corpus_of(sentence_lengths(20_000))
    order = Order(corpus, batch_tokens=2048, seed=0)
    label = np.empty(len(corpus), dtype=np.int64)
    for number, batch in enumerate(epoch(order, 1)):
        label[batch] = number
    together = again = 0
    for batch in epoch(order, 0):
        counts = np.bincount(label[batch])
        again += int((counts * (counts - 1)).sum())
        together += len(batch) * (len(batch) - 1)
    assert again / together < 0.5


def test_little_padding_on_both_sides() -> None:
    corpus = corpus_of(sentence_lengths(20_000))
    order = Order(corpus, batch_tokens=2048, seed=0)
    assert order.padding < 0.06
    shuffled = np.random.default_rng(0).permutation(len(corpus))
    unsorted = cut(shuffled, corpus.longer_lengths(shuffled), 2048)
    assert padding_share(corpus, unsorted) > 0.5
    assert order.batches_an_epoch < 0.6 * len(unsorted)


@pytest.mark.parametrize(("pairs", "exact"), [(100, True), (20_000, True), (100_000, False)])
def test_the_number_of_batches_is_known_before_the_epoch(pairs: int, exact: bool) -> None:
    order = Order(corpus_of(sentence_lengths(pairs)), batch_tokens=1024, seed=0)
    batches = [planned.rows for planned in order.rest_of_epoch(START)]
    assert (order.pools <= 8) == exact
    if exact:
        assert order.batches_an_epoch == len(batches)
        assert order.padding == pytest.approx(padding_share(order.corpus, batches))
    else:
        assert order.batches_an_epoch == pytest.approx(len(batches), rel=0.01)
        assert order.padding == pytest.approx(padding_share(order.corpus, batches), rel=0.05)


def test_several_corpora_get_their_shares() -> None:
    corpus = dataclasses.replace(corpus_of(sentence_lengths(3000)), parts=(1000, 2000))
    order = Order(corpus, batch_tokens=512, seed=0, weights=(3, 1))
    for number in range(4):
        rows = np.concatenate([planned.rows for planned in order.rest_of_epoch(Place(number))])
        assert np.count_nonzero(rows < 1000) == 2250
        assert len(rows) == 3000


def test_an_empty_corpus_has_no_batches() -> None:
    order = Order(corpus_of([]), batch_tokens=100, seed=0)
    assert (epoch(order), order.batches_an_epoch, order.padding) == ([], 0, 0.0)


@pytest.mark.parametrize("place", [Place(0, 99, 0), Place(0, 0, 10_000)])
def test_a_place_of_other_data_is_refused(place: Place) -> None:
    order = Order(corpus_of(sentence_lengths(500)), batch_tokens=512, seed=0)
    with pytest.raises(SaccadeError, match=r"(?s)has no batch.*not those of the run"):
        list(order.rest_of_epoch(place))


@dataclasses.dataclass(frozen=True)
class EndlessCorpus(Corpus):
    """Says what a large corpus would say, from nothing."""

    def __len__(self) -> int:
        return self.statistics.pairs

    def lengths(self, offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return 5 + (rows * 7919 % 31)


def endless(pairs: int) -> Corpus:
    nothing = np.empty(0, np.int64)
    statistics = CorpusStatistics(pairs=pairs, longer_tokens=20 * pairs)
    return EndlessCorpus(nothing, nothing, nothing, nothing, parts=(pairs,), statistics=statistics)


def test_memory_and_time_do_not_grow_with_the_corpus() -> None:
    def first_batches(order: Order) -> Iterator[int]:
        return (len(planned.rows) for planned in itertools.islice(order.rest_of_epoch(Place(3, 2, 1)), 200))

    peaks = []
    for pairs in (500_000, 50_000_000):
        order = Order(endless(pairs), batch_tokens=4096, seed=0)
        tracemalloc.start()
        begin = time.perf_counter()
        assert order.batches_an_epoch == pytest.approx(pairs * 20 / 4096, rel=0.1)
        assert sum(first_batches(order)) > 30_000
        seconds = time.perf_counter() - begin
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert seconds < 5  # about 0.2 s on a laptop
    assert peaks[1] < 1.2 * peaks[0] < 30e6
