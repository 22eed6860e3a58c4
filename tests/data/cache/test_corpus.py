from __future__ import annotations

import numpy as np
import pytest

from saccade.data.cache.corpus import build_corpus
from saccade.data.config import DataConfig
from saccade.data.reading import pair_stream as pairs_module
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.symbols import Symbols


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_build_corpus_equals_encoding_one_by_one(
    pairs: list[Pair], tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(pairs_module, "CHUNK_PAIRS", chunk)
    corpus = build_corpus(iter(pairs), tokenizers, DataConfig())
    assert len(corpus) == len(pairs)
    assert corpus.pairs is None
    examples = np.arange(len(corpus))
    lengths = corpus.source_lengths(examples), corpus.target_lengths(examples), corpus.longer_lengths(examples)
    for index, pair in enumerate(pairs):
        assert corpus.source(index).tolist() == [*tokenizers.source.encode(pair.source).ids, Symbols.end]
        assert corpus.target(index).tolist() == [*tokenizers.target.encode(pair.target).ids, Symbols.end]
        sides = len(corpus.source(index)), len(corpus.target(index))
        assert tuple(side[index] for side in lengths) == (*sides, max(sides))
    assert (corpus.source_ids.dtype, corpus.source_offsets.dtype) == (np.int32, np.int64)
    assert np.shares_memory(corpus.source(3), corpus.source_ids)


def test_unusable_pairs_are_dropped_and_counted(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    long = Pair("a man " * 30, "ein Mann " * 30)
    mixed = [pairs[0], Pair("", "x"), long, Pair("a", "  "), Pair("a", pairs[1].target), pairs[1]]
    corpus = build_corpus(mixed, tokenizers, DataConfig(max_length=30, max_ratio=3), keep_text=True)
    assert corpus.pairs == pairs[:2]
    dropped = corpus.dropped
    assert (dropped.seen, dropped.empty, dropped.too_long, dropped.unequal, dropped.total) == (6, 2, 1, 1, 4)


def test_max_length_does_not_count_the_end_symbol(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    statistics = build_corpus(pairs, tokenizers, DataConfig()).statistics
    longest = max(statistics.longest_source, statistics.longest_target) - 1
    assert build_corpus(pairs, tokenizers, DataConfig(max_length=longest)).dropped.total == 0
    assert build_corpus(pairs, tokenizers, DataConfig(max_length=longest - 1)).dropped.too_long > 0


def test_unfiltered_keeps_every_pair(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    mixed = [pairs[0], Pair("", ""), Pair("a man " * 30, "ein"), pairs[1]]
    corpus = build_corpus(mixed, tokenizers, DataConfig(max_length=3), keep_text=True, filtered=False)
    assert corpus.pairs == mixed
    assert corpus.source(1).tolist() == corpus.target(1).tolist() == [Symbols.end]
    assert str(corpus.dropped) == "dropped none of 4 pairs"


def test_empty_corpus(tokenizers: Tokenizers) -> None:
    corpus = build_corpus([], tokenizers, DataConfig())
    assert len(corpus) == 0
    assert corpus.source_offsets.tolist() == [0]
    assert (corpus.parts, corpus.statistics.pairs) == ((0,), 0)


def test_statistics(pairs: list[Pair], tokenizers: Tokenizers) -> None:
    corpus = build_corpus([*pairs, Pair("Ω a", "ein Ω Ω")], tokenizers, DataConfig())
    statistics = corpus.statistics
    assert (statistics.pairs, corpus.parts) == (len(pairs) + 1, (len(pairs) + 1,))
    assert (statistics.source_tokens, statistics.target_tokens) == (len(corpus.source_ids), len(corpus.target_ids))
    assert (statistics.unknown_source, statistics.unknown_target) == (1, 2)
    examples = np.arange(len(corpus))
    assert statistics.longer_tokens == corpus.longer_lengths(examples).sum()
    growths = (corpus.target_lengths(examples) - 10) / corpus.source_lengths(examples)
    assert statistics.growth == max(0.0, np.quantile(growths, 0.999, method="inverted_cdf"))
