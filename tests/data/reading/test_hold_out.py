from __future__ import annotations

import hashlib
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.reading import hold_out
from saccade.data.reading.hold_out import HoldOutSelector, held_out_mask
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.errors import SaccadeError

PAIRS = st.lists(st.builds(Pair, st.sampled_from(["a", "b", "c ", " c", "d", "e", "ﬁ", "fi"]), st.sampled_from("xyz")))


def held_pairs(pairs: list[Pair], count: int, chunk: int = 3) -> list[Pair]:
    selector = HoldOutSelector(count)
    for start in range(0, len(pairs), chunk):
        selector.add(hold_out.source_keys(pairs[start : start + chunk]))
    held = selector.choose()
    return [pairs[index] for index in np.flatnonzero(held_out_mask(pairs, held))]


def reference(pairs: list[Pair], count: int) -> list[Pair]:
    """Select with all digests in memory: take groups of equal sources in digest order while they fit."""

    def digest(pair: Pair) -> bytes:
        return hashlib.blake2b(normalize(pair.source, "nfkc").encode(), digest_size=16).digest()

    sizes = Counter(map(digest, pairs))
    held: set[bytes] = set()
    for key in sorted(sizes):
        if sizes[key] <= count:
            held.add(key)
            count -= sizes[key]
    return [pair for pair in pairs if digest(pair) in held]


@settings(deadline=None, max_examples=200)
@given(pairs=PAIRS, count=st.integers(0, 8), chunk=st.integers(1, 5))
def test_equal_sources_are_not_separated(pairs: list[Pair], count: int, chunk: int) -> None:
    if 0 < len(pairs) <= count:
        with pytest.raises(SaccadeError, match=r"(?s)--data\.hold-out"):
            held_pairs(pairs, count, chunk)
        return
    held = held_pairs(pairs, count, chunk)
    assert held == reference(pairs, count)
    assert len(held) <= count
    plain = [pair.source.strip().replace("ﬁ", "fi") for pair in held]
    others = [pair.source.strip().replace("ﬁ", "fi") for pair in pairs if pair not in held]
    assert set(plain).isdisjoint(others)


def test_bounded_memory_selects_the_same_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_out, "SPARE_CANDIDATES", 10)
    generator = random.Random(4)
    pairs = [Pair(f"sentence {generator.randrange(3000)}", str(number)) for number in range(5000)]
    selector = HoldOutSelector(50)
    for start in range(0, len(pairs), 100):
        selector.add(hold_out.source_keys(pairs[start : start + 100]))
        assert len(selector._keys) <= 110
    assert np.count_nonzero(held_out_mask(pairs, selector.choose())) == 50
    assert held_pairs(pairs, 50, chunk=100) == reference(pairs, 50)


def test_selection_depends_only_on_the_texts(pairs: list[Pair]) -> None:
    chosen = held_pairs(pairs, 10)
    assert len(chosen) == 10
    shuffled = random.Random(0).sample(pairs, len(pairs))
    assert sorted(held_pairs(shuffled, 10)) == sorted(chosen)
    assert chosen[0].source == "a man eating at home."  # equal in every process and on every machine


def test_very_frequent_source_is_not_held_out() -> None:
    flood = [Pair("Yes.", str(number)) for number in range(1000)]
    held = held_pairs([*flood, *(Pair(str(number), "x") for number in range(100))], 20, chunk=10)
    assert len(held) == 20
    assert all(pair.source != "Yes." for pair in held)
