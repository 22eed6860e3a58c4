from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data import corpus as corpus_module
from saccade.data.config import DataConfig
from saccade.data.corpus import build_corpus, hold_out
from saccade.data.files import Pair
from saccade.data.tokenizer import Tokenizers
from saccade.errors import SaccadeError
from saccade.symbols import Symbols


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_flat_arrays_hold_what_one_by_one_gives(
    pairs: list[Pair], tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK", chunk)
    corpus = build_corpus(iter(pairs), tokenizers, DataConfig())
    assert len(corpus) == len(pairs)
    assert corpus.pairs is None
    for index, pair in enumerate(pairs):
        assert corpus.source(index).tolist() == [*tokenizers.source.encode(pair.source).ids, Symbols.end]
        assert corpus.target(index).tolist() == [*tokenizers.target.encode(pair.target).ids, Symbols.end]
        assert corpus.source_lengths[index] == len(corpus.source(index))
        assert corpus.target_lengths[index] == len(corpus.target(index))
        assert corpus.longer_lengths[index] == max(len(corpus.source(index)), len(corpus.target(index)))
    assert (corpus.source_ids.dtype, corpus.source_offsets.dtype) == (np.int32, np.int64)
    assert np.shares_memory(corpus.source(3), corpus.source_ids)


def test_what_cannot_teach_is_dropped_and_counted(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    long = Pair("a man " * 30, "ein Mann " * 30)
    mixed = [pairs[0], Pair("", "x"), long, Pair("a", "  "), Pair("a", pairs[1].target), pairs[1]]
    corpus = build_corpus(mixed, tokenizers, DataConfig(max_length=30, max_ratio=3), keep_text=True)
    assert corpus.pairs == pairs[:2]
    dropped = corpus.dropped
    assert (dropped.seen, dropped.empty, dropped.too_long, dropped.unequal, dropped.total) == (6, 2, 1, 1, 4)


def test_the_limit_does_not_count_the_end_symbol(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    longest = int(build_corpus(pairs, tokenizers, DataConfig()).longer_lengths.max()) - 1
    assert build_corpus(pairs, tokenizers, DataConfig(max_length=longest)).dropped.total == 0
    assert build_corpus(pairs, tokenizers, DataConfig(max_length=longest - 1)).dropped.too_long > 0


def test_unfiltered_keeps_everything_in_place(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    mixed = [pairs[0], Pair("", ""), Pair("a man " * 30, "ein"), pairs[1]]
    corpus = build_corpus(mixed, tokenizers, DataConfig(max_length=3), keep_text=True, filtered=False)
    assert corpus.pairs == mixed
    assert corpus.source(1).tolist() == corpus.target(1).tolist() == [Symbols.end]
    assert str(corpus.dropped) == "dropped none of 4 pairs"


def test_no_pairs_make_an_empty_corpus(tokenizers: Tokenizers) -> None:
    corpus = build_corpus([], tokenizers, DataConfig())
    assert len(corpus) == 0
    assert corpus.source_offsets.tolist() == [0]


PAIRS = st.lists(st.builds(Pair, st.sampled_from(["a", "b", "c ", " c", "d", "e", "ﬁ", "fi"]), st.sampled_from("xyz")))


@settings(deadline=None, max_examples=100)
@given(pairs=PAIRS, count=st.integers(0, 8))
def test_held_out_pairs_share_no_source_with_training(pairs: list[Pair], count: int) -> None:
    if 0 < len(pairs) <= count:
        with pytest.raises(SaccadeError, match=r"(?s)cannot hold out.*--data.hold-out"):
            hold_out(pairs, count)
        return
    split = hold_out(pairs, count)
    assert sorted([*split.train, *split.valid]) == sorted(pairs)
    assert len(split.valid) <= count
    plain = [{pair.source.strip().replace("ﬁ", "fi") for pair in part} for part in split]
    assert plain[0].isdisjoint(plain[1])


def test_hold_out_takes_as_many_as_asked(pairs: list[Pair]) -> None:
    split = hold_out(iter(pairs), 10)
    assert (len(split.train), len(split.valid)) == (54, 10)
    assert split.valid == [pair for pair in pairs if pair in split.valid]


def test_hold_out_depends_on_the_texts_alone(pairs: list[Pair]) -> None:
    chosen = hold_out(pairs, 10).valid
    shuffled = random.Random(0).sample(pairs, len(pairs))
    assert sorted(hold_out(shuffled, 10).valid) == sorted(chosen)
    assert chosen[0].source == "a man eating at home."  # in every process, on every machine


def test_a_flood_of_one_source_is_not_held_out() -> None:
    flood = [Pair("Yes.", str(number)) for number in range(1000)]
    split = hold_out([*flood, *(Pair(str(number), "x") for number in range(100))], 20)
    assert len(split.valid) == 20
    assert all(pair.source != "Yes." for pair in split.valid)
