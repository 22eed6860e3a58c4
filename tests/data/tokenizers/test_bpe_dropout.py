from __future__ import annotations

import numpy as np
import pytest

from saccade.config import build
from saccade.data.cache.corpus import build_corpus
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.sampling.batches import collate
from saccade.data.tokenizers.bpe_dropout import NOT_MERGED, bpe_dropout_from_config, merge_table, undo_merges
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.errors import SaccadeError
from saccade.symbols import Symbols

TEXTS = ["houses and gardens", "the house and the garden", "gardens, gardens everywhere"] * 4
PAIRS = [Pair(text, text.upper()) for text in TEXTS]
CONFIG = DataConfig(vocabulary=120, bpe_dropout=0.3, min_frequency=1)
TOKENIZERS = train_tokenizers(PAIRS, CONFIG)
CORPUS = build_corpus(PAIRS, TOKENIZERS, CONFIG)
LONG = 10_000


def generator(key: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key))


def split(probability: float, *, max_length: int = LONG, key: int = 0) -> list[list[int]]:
    lengths = np.diff(CORPUS.source_offsets)
    merges = merge_table(TOKENIZERS.source)
    ids, found = undo_merges(CORPUS.source_ids, lengths, merges, probability, max_length, generator(key))
    assert found.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(found)[:-1])]


def texts(sequences: list[list[int]]) -> list[str]:
    return [TOKENIZERS.source.decode(sequence) for sequence in sequences]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999])
def test_text_is_unchanged(probability):
    sequences = split(probability)
    assert texts(sequences) == TEXTS
    assert all(ids[-1] == Symbols.end and Symbols.end not in ids[:-1] for ids in sequences)


def test_higher_probability_splits_more():
    before, some, most = (sum(map(len, split(probability))) for probability in (0.0, 0.3, 0.9999))
    letters = sum(len(text) + 2 for text in TEXTS)  # the space before each text and the end
    assert before == len(CORPUS.source_ids) < some < most <= letters


def test_merge_table_parts_concatenate_to_the_token():
    tokenizer, merges = TOKENIZERS.source, merge_table(TOKENIZERS.source)
    merged = np.flatnonzero(merges.left != NOT_MERGED)
    assert len(merged) == len({first + second for first, second in tokenizer.merges}) > 20
    for token in merged:
        assert tokenizer.piece(merges.left[token]) + tokenizer.piece(merges.right[token]) == tokenizer.piece(token)
    assert (merges.left[: len(vars(Symbols()))] == NOT_MERGED).all()


def test_sequence_that_would_be_too_long_is_unchanged():
    plain = split(0.0)
    max_length = max(map(len, plain)) + 2
    sequences = split(0.9, max_length=max_length)
    assert texts(sequences) == TEXTS
    assert max(map(len, sequences)) <= max_length
    assert any(found == original for found, original in zip(sequences, plain, strict=True))
    assert any(found != original for found, original in zip(split(0.2, max_length=max_length), plain, strict=True))


def test_result_depends_on_the_key():
    assert split(0.3, key=5) == split(0.3, key=5) != split(0.3, key=6)


def test_collate_splits_source_and_target():
    bpe_dropout = bpe_dropout_from_config(CONFIG, TOKENIZERS)
    batch = collate(CORPUS, [0, 1, 2], bpe_dropout=bpe_dropout, key=3)
    same, plain = collate(CORPUS, [0, 1, 2], bpe_dropout=bpe_dropout, key=3), collate(CORPUS, [0, 1, 2])
    assert batch.target.equal(same.target)
    assert batch.source_tokens > plain.source_tokens
    assert batch.target_tokens > plain.target_tokens
    assert (batch.prefix[:, 1:][batch.target_mask[:, 1:]] == batch.target[:, :-1][batch.target_mask[:, 1:]]).all()
    for row, index in enumerate(batch.indices):
        assert TOKENIZERS.target.decode(batch.target[row][batch.target_mask[row]].tolist()) == PAIRS[index].target


def test_tokenizers_without_merges_are_not_split():
    assert bpe_dropout_from_config(CONFIG.model_copy(update={"bpe_dropout": 0.0}), TOKENIZERS) is None
    mixed = DataConfig(tokenizer="bpe", target_tokenizer="char", vocabulary=100, bpe_dropout=0.2, min_frequency=1)
    bpe_dropout = bpe_dropout_from_config(mixed, train_tokenizers(PAIRS, mixed))
    assert bpe_dropout is not None
    assert bpe_dropout.source is not None
    assert bpe_dropout.target is None
    with pytest.raises(SaccadeError, match="bpe tokenizer"):
        build(DataConfig, {"tokenizer": "unigram", "bpe_dropout": 0.1}, where="data")
