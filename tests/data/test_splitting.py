from __future__ import annotations

import numpy as np
import pytest

from saccade.config import build
from saccade.data.cache.corpus import build_corpus
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.sampling.batches import collate
from saccade.data.tokenizers.bpe_dropout import WHOLE, parts_of, split_tokens, splitting_of
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.errors import SaccadeError
from saccade.symbols import Symbols

TEXTS = ["houses and gardens", "the house and the garden", "gardens, gardens everywhere"] * 4
PAIRS = [Pair(text, text.upper()) for text in TEXTS]
CONFIG = DataConfig(vocabulary=120, split=0.3, min_frequency=1)
TOKENIZERS = train_tokenizers(PAIRS, CONFIG)
CORPUS = build_corpus(PAIRS, TOKENIZERS, CONFIG)
LONG = 10_000


def generator(key: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key))


def split(probability: float, *, longest: int = LONG, key: int = 0) -> list[list[int]]:
    lengths = np.diff(CORPUS.source_offsets)
    parts = parts_of(TOKENIZERS.source)
    ids, found = split_tokens(CORPUS.source_ids, lengths, parts, probability, longest, generator(key))
    assert found.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(found)[:-1])]


def texts(rows: list[list[int]]) -> list[str]:
    return [TOKENIZERS.source.decode(row) for row in rows]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999])
def test_the_text_stays_the_same(probability):
    rows = split(probability)
    assert texts(rows) == TEXTS
    assert all(row[-1] == Symbols.end and Symbols.end not in row[:-1] for row in rows)


def test_more_is_split_with_a_higher_probability():
    before, some, most = (sum(map(len, split(probability))) for probability in (0.0, 0.3, 0.9999))
    letters = sum(len(text) + 2 for text in TEXTS)  # the space before each text and the end
    assert before == len(CORPUS.source_ids) < some < most <= letters


def test_each_token_is_put_together_again_from_its_parts():
    tokenizer, parts = TOKENIZERS.source, parts_of(TOKENIZERS.source)
    merged = np.flatnonzero(parts.left != WHOLE)
    assert len(merged) == len({first + second for first, second in tokenizer.merges}) > 20
    for token in merged:
        assert tokenizer.piece(parts.left[token]) + tokenizer.piece(parts.right[token]) == tokenizer.piece(token)
    assert (parts.left[: len(vars(Symbols()))] == WHOLE).all()


def test_a_text_that_would_be_too_long_stays_as_it_is():
    plain = split(0.0)
    longest = max(map(len, plain)) + 2
    rows = split(0.9, longest=longest)
    assert texts(rows) == TEXTS
    assert max(map(len, rows)) <= longest
    assert any(row == whole for row, whole in zip(rows, plain, strict=True))
    assert any(row != whole for row, whole in zip(split(0.2, longest=longest), plain, strict=True))


def test_a_key_decides():
    assert split(0.3, key=5) == split(0.3, key=5) != split(0.3, key=6)


def test_a_batch_is_split_on_both_sides():
    splitting = splitting_of(CONFIG, TOKENIZERS)
    batch = collate(CORPUS, [0, 1, 2], splitting=splitting, key=3)
    same, plain = collate(CORPUS, [0, 1, 2], splitting=splitting, key=3), collate(CORPUS, [0, 1, 2])
    assert batch.target.equal(same.target)
    assert batch.source_tokens > plain.source_tokens
    assert batch.target_tokens > plain.target_tokens
    assert (batch.prefix[:, 1:][batch.target_mask[:, 1:]] == batch.target[:, :-1][batch.target_mask[:, 1:]]).all()
    for row, index in enumerate(batch.indices):
        assert TOKENIZERS.target.decode(batch.target[row][batch.target_mask[row]].tolist()) == PAIRS[index].target


def test_who_has_no_merges_is_not_split():
    assert splitting_of(CONFIG.model_copy(update={"split": 0.0}), TOKENIZERS) is None
    mixed = DataConfig(tokenizer="bpe", target_tokenizer="char", vocabulary=100, split=0.2, min_frequency=1)
    splitting = splitting_of(mixed, train_tokenizers(PAIRS, mixed))
    assert splitting is not None
    assert splitting.source is not None
    assert splitting.target is None
    with pytest.raises(SaccadeError, match="only the bpe tokenizer"):
        build(DataConfig, {"tokenizer": "unigram", "split": 0.1}, where="data")
