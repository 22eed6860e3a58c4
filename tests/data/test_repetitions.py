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
from saccade.data.audit.duplicates import Again, Repetitions
from saccade.data.audit.examination import combine, keys_of

Text = st.sampled_from("abcdef")


def fill(repetitions: Repetitions, corpus: int, pairs: list[tuple[str, str]], first: int = 1) -> None:
    sources, targets = keys_of([pair[0] for pair in pairs]), keys_of([pair[1] for pair in pairs])
    repetitions.add(corpus, np.arange(first, first + len(pairs)), sources, combine(sources, targets))


@hypothesis_settings(deadline=None)
@given(pairs=st.lists(st.tuples(Text, Text), max_size=60), buffered=st.sampled_from([5, 1000]), size=st.integers(1, 9))
def test_counts_are_those_of_the_slow_way(pairs: list[tuple[str, str]], buffered: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "BUFFERED", buffered)
        repetitions = Repetitions()
        starts = list(range(0, len(pairs), size))
        for start in reversed(starts):  # whatever order the chunks come in
            fill(repetitions, 0, pairs[start : start + size], start + 1)
        repetitions.count()
    assert repetitions.duplicates == sum(count - 1 for count in Counter(pairs).values())
    targets: dict[str, set[str]] = {}
    for source, target in pairs:
        targets.setdefault(source, set()).add(target)
    assert repetitions.ambiguous == sum(len(targets[source]) > 1 for source, _ in pairs)
    places = [place for place, pair in enumerate(pairs) if pair in pairs[:place]]
    expected = [Again(0, place + 1, 0, pairs.index(pairs[place]) + 1) for place in places][:5]
    assert repetitions.duplicate_examples == expected


def test_the_earlier_pair_may_stand_in_another_corpus() -> None:
    repetitions = Repetitions()
    fill(repetitions, 1, [("x", "y"), ("a", "c")])
    fill(repetitions, 0, [("a", "b"), ("x", "y")])
    repetitions.count()
    assert repetitions.duplicate_examples == [Again(1, 1, 0, 2)]
    assert repetitions.ambiguous_examples == [Again(1, 2, 0, 1)]
    assert (repetitions.duplicates, repetitions.ambiguous) == (1, 2)


@pytest.mark.parametrize("finished", [True, False])
def test_no_file_is_left_behind(finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BUFFERED", 10)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    repetitions = Repetitions()
    fill(repetitions, 0, [(str(number), "t") for number in range(1000)])
    assert len(list(tmp_path.glob("*/*"))) > 100
    if finished:
        repetitions.count()
    del repetitions
    gc.collect()
    assert list(tmp_path.iterdir()) == []
