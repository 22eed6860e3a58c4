from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.cache.corpus_statistics import CorpusStatistics, StatisticsCounter

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, repeats=st.sampled_from([1, 100]), chunks=st.integers(1, 5))
def test_chunked_counting_equals_direct_computation(lengths: list[tuple[int, int]], repeats: int, chunks: int) -> None:
    table = np.array(lengths * repeats, dtype=np.int64)
    counter = StatisticsCounter()
    for part in np.array_split(table, chunks):
        counter.add(part[:, 0], part[:, 1], unknown_source=2, unknown_target=int(len(part) > 0))
    found = counter.finish()
    source, target = table.T
    assert (found.pairs, found.source_tokens, found.target_tokens) == (len(table), source.sum(), target.sum())
    assert found.longer_tokens == np.maximum(source, target).sum()
    assert (found.longest_source, found.longest_target) == (source.max(), target.max())
    assert found.growth == max(0.0, np.quantile((target - 10) / source, 0.999, method="inverted_cdf"))
    assert found.unknown_target == min(chunks, len(table))


def test_no_pairs() -> None:
    assert StatisticsCounter().finish() == CorpusStatistics()
