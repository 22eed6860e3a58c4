from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.cache.length_filters import DroppedPairs, PairFilter

LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)))


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, max_length=st.integers(1, 10), max_ratio=st.sampled_from([0.0, 1.0, 1.5, 3.0]))
def test_filter_equals_checking_one_by_one(lengths: list[tuple[int, int]], max_length: int, max_ratio: float) -> None:
    expected = DroppedPairs(max_length=max_length, max_ratio=max_ratio)
    kept = []
    for source, target in lengths:
        expected.seen += 1
        keep = False
        if source == 0 or target == 0:
            expected.empty += 1
        elif source > max_length or target > max_length:
            expected.too_long += 1
        elif max_ratio and max(source, target) / min(source, target) > max_ratio:
            expected.unequal += 1
        else:
            keep = True
        kept.append(keep)

    pair_filter = PairFilter(max_length=max_length, max_ratio=max_ratio)
    table = np.array(lengths, dtype=np.int64).reshape(-1, 2)
    halves = [pair_filter.keep(part[:, 0], part[:, 1]) for part in np.array_split(table, 2)]

    assert np.concatenate(halves).tolist() == kept
    assert pair_filter.dropped == expected
    assert expected.total == len(lengths) - sum(kept)


def test_message() -> None:
    assert str(DroppedPairs(seen=29_000)) == "dropped none of 29,000 pairs"
    dropped = DroppedPairs(max_length=256, seen=29_000, empty=7, too_long=5)
    assert str(dropped) == "dropped 12 of 29,000 pairs: 7 empty, 5 longer than 256 tokens"
    dropped = DroppedPairs(max_ratio=2.5, seen=3, unequal=1)
    assert str(dropped) == "dropped 1 of 3 pairs: 1 with one side more than 2.5 times longer"
