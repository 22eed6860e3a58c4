from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from saccade.data.audit import duplicates as subject
from saccade.data.audit.duplicates import DuplicateCounter, Repeat
from saccade.data.audit.examination import combine, keys_of

Text = st.sampled_from("abcdef")


def fill(counter: DuplicateCounter, corpus: int, pairs: list[tuple[str, str]], first: int = 1) -> None:
    sources, targets = keys_of([pair[0] for pair in pairs]), keys_of([pair[1] for pair in pairs])
    counter.add(corpus, np.arange(first, first + len(pairs)), sources, combine(sources, targets))


@hypothesis_settings(deadline=None)
@given(pairs=st.lists(st.tuples(Text, Text), max_size=60), buffered=st.sampled_from([5, 1000]), size=st.integers(1, 9))
def test_counts_equal_the_reference(pairs: list[tuple[str, str]], buffered: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "MAX_BUFFERED", buffered)
        counter = DuplicateCounter()
        starts = list(range(0, len(pairs), size))
        for start in reversed(starts):  # chunks may arrive in any order
            fill(counter, 0, pairs[start : start + size], start + 1)
        counter.count()
    assert counter.duplicates == sum(count - 1 for count in Counter(pairs).values())
    targets: dict[str, set[str]] = {}
    for source, target in pairs:
        targets.setdefault(source, set()).add(target)
    assert counter.ambiguous == sum(len(targets[source]) > 1 for source, _ in pairs)
    indices = [index for index, pair in enumerate(pairs) if pair in pairs[:index]]
    expected = [Repeat(0, index + 1, 0, pairs.index(pairs[index]) + 1) for index in indices][:5]
    assert counter.duplicate_examples == expected


def test_earlier_pair_may_be_in_another_corpus() -> None:
    counter = DuplicateCounter()
    fill(counter, 1, [("x", "y"), ("a", "c")])
    fill(counter, 0, [("a", "b"), ("x", "y")])
    counter.count()
    assert counter.duplicate_examples == [Repeat(1, 1, 0, 2)]
    assert counter.ambiguous_examples == [Repeat(1, 2, 0, 1)]
    assert (counter.duplicates, counter.ambiguous) == (1, 2)


@pytest.mark.parametrize("finished", [True, False])
def test_temporary_files_are_removed(finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_BUFFERED", 10)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    counter = DuplicateCounter()
    fill(counter, 0, [(str(number), "t") for number in range(1000)])
    assert len(list(tmp_path.glob("*/*"))) > 100
    if finished:
        counter.count()
    del counter
    gc.collect()
    assert list(tmp_path.iterdir()) == []
