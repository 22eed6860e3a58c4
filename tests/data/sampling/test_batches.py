from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from generated_corpus import corpus_of, sentence_lengths
from saccade.data.sampling.batches import (
    Batch,
    bucket_by_length,
    collate,
    cut_into_batches,
    move_source,
    sorted_batches,
)
from saccade.interface import Source
from saccade.symbols import Symbols

SYMBOLS = Symbols()
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


class TestCollate:
    @settings(deadline=None, max_examples=50)
    @given(lengths=LENGTHS, data=st.data())
    def test_collate_equals_padding_row_by_row(self, lengths: list[tuple[int, int]], data: st.DataObject) -> None:
        corpus = corpus_of(lengths)
        indices = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=10))
        batch = collate(corpus, indices, SYMBOLS)
        assert batch.indices == tuple(indices)
        assert isinstance(batch.source.values, torch.Tensor)
        longest_source = max(lengths[index][0] for index in indices)
        longest_target = max(lengths[index][1] for index in indices)
        assert batch.source.values.shape == batch.source.mask.shape == (len(indices), longest_source)
        assert batch.prefix.shape == batch.target.shape == batch.target_mask.shape == (len(indices), longest_target)
        for row, index in enumerate(indices):
            source, target = corpus.source(index).tolist(), corpus.target(index).tolist()
            source_padding = [SYMBOLS.pad] * (longest_source - len(source))
            target_padding = [SYMBOLS.pad] * (longest_target - len(target))
            assert batch.source.values[row].tolist() == source + source_padding
            assert batch.target[row].tolist() == target + target_padding
            assert batch.prefix[row].tolist() == [SYMBOLS.begin, *target[:-1], *target_padding]
            assert batch.source.mask[row].tolist() == [True] * len(source) + [False] * len(source_padding)
            assert batch.target_mask[row].tolist() == [True] * len(target) + [False] * len(target_padding)
        assert batch.source_tokens == sum(lengths[index][0] for index in indices)
        assert batch.target_tokens == sum(lengths[index][1] for index in indices)

    def test_dtypes(self) -> None:
        batch = collate(corpus_of([(3, 4), (2, 2)]), [1, 0])
        assert batch.prefix.dtype == batch.target.dtype == torch.int64
        assert batch.source.mask.dtype == batch.target_mask.dtype == torch.bool

    def test_to_moves_every_tensor(self) -> None:
        batch = collate(corpus_of([(3, 4)]), [0]).to("meta")
        assert isinstance(batch, Batch)
        assert isinstance(batch.source.values, torch.Tensor)
        tensors = (batch.source.values, batch.source.mask, batch.prefix, batch.target, batch.target_mask)
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert batch.indices == (0,)

    def test_nested_sources_are_moved(self) -> None:
        mask = torch.ones(1, 2, dtype=torch.bool)
        inner = move_source(Source((Source(torch.zeros(1, 2), mask),), mask), "meta").values
        assert isinstance(inner, tuple)
        assert inner[0].mask.device.type == "meta"


class TestBatches:
    @settings(deadline=None, max_examples=100)
    @given(lengths=LENGTHS, batch_tokens=st.integers(1, 200))
    def test_sorted_batches_contain_every_example_once_within_the_token_limit(
        self, lengths: list[tuple[int, int]], batch_tokens: int
    ) -> None:
        batches = sorted_batches(corpus_of(lengths), batch_tokens)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        for batch in batches:
            size = len(batch) * max(max(lengths[index]) for index in batch)
            assert size <= batch_tokens or len(batch) == 1

    @settings(deadline=None, max_examples=100)
    @given(lengths=LENGTHS, batch_tokens=st.integers(1, 200))
    def test_cutting_is_greedy(self, lengths: list[tuple[int, int]], batch_tokens: int) -> None:
        expected: list[list[int]] = []
        for index in range(len(lengths)):
            grown = [*expected[-1], index] if expected else [index]
            if expected and len(grown) * max(max(lengths[member]) for member in grown) <= batch_tokens:
                expected[-1] = grown
            else:
                expected.append([index])
        longer = np.array([max(sides) for sides in lengths])
        batches = cut_into_batches(np.arange(len(lengths)), longer, batch_tokens)
        assert [batch.tolist() for batch in batches] == expected

    @settings(deadline=None, max_examples=50)
    @given(lengths=LENGTHS, batch_tokens=st.integers(1, 200))
    def test_token_and_padding_counts_match_collated_batches(
        self, lengths: list[tuple[int, int]], batch_tokens: int
    ) -> None:
        corpus = corpus_of(lengths)
        found = bucket_by_length(corpus, np.arange(len(corpus)), batch_tokens)
        collated = [collate(corpus, batch) for batch in found.batches]
        assert found.tokens == sum(batch.source_tokens + batch.target_tokens for batch in collated)
        positions = sum(batch.source.mask.numel() + batch.target_mask.numel() for batch in collated)
        assert found.padding == positions - found.tokens

    def test_sorted_batches_start_with_the_shortest(self) -> None:
        corpus = corpus_of(sentence_lengths(500))
        longest = [int(corpus.longer_lengths(batch).max()) for batch in sorted_batches(corpus, 256)]
        assert longest == sorted(longest)

    def test_an_empty_corpus_has_no_batches(self) -> None:
        assert sorted_batches(corpus_of([]), 100) == []
        assert bucket_by_length(corpus_of([]), np.arange(0), 100) == ([], 0, 0)
