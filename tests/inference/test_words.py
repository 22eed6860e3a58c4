from __future__ import annotations

import pytest
import torch

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.inference.words import (
    END,
    PieceWords,
    merge_keys,
    merge_queries,
    piece_words_of_output,
    piece_words_of_text,
)

LINES = ["the man sees a dog", "the dogs see a manager", "déjà vu again"]
KINDS = ["word", "bpe", "unigram", "char", "byte"]


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.train(kind, LINES, size=40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["the man", "a  dog sees the dogs ", "déjà vu", "man"])
def test_pieces_of_a_text_are_grouped_by_its_words(kind: str, text: str) -> None:
    found = piece_words_of_text(tokenizer(kind), text)
    assert found.words == (*text.split(), END)
    assert len(found.pieces) == len(found.word_of_piece)
    assert list(found.word_of_piece) == sorted(found.word_of_piece)
    assert set(found.word_of_piece) == set(range(len(found.words)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["the man", "a dog sees the dogs", "déjà vu"])
def test_an_output_has_the_words_of_its_text(kind: str, text: str) -> None:
    used = tokenizer(kind)
    encoding = used.encode(text)
    if used.symbols.unknown in encoding.ids:
        pytest.skip("the vocabulary is too small")
    assert piece_words_of_output(used, encoding.ids).words == (*text.split(), END)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_an_unknown_piece_shows_its_letters(kind: str) -> None:
    found = piece_words_of_text(tokenizer(kind), "the 猫 man")
    assert any("猫" in piece for piece in found.pieces)
    assert not any("<unk>" in piece for piece in found.pieces)
    assert found.words == ("the", "猫", "man", END)


def test_empty_output() -> None:
    assert piece_words_of_output(tokenizer("bpe"), []) == PieceWords((END,), (END,), (0,))
    assert piece_words_of_text(tokenizer("bpe"), "") == PieceWords((END,), (END,), (0,))


def test_weights_are_summed_over_source_pieces_and_averaged_over_output_pieces() -> None:
    source = PieceWords(("a", "b", "c", END), ("ab", "c", END), (0, 0, 1, 2))
    target = PieceWords(("x", "y", END), ("xy", END), (0, 0, 1))
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.3, 0.1], [0.0, 0.0, 0.0, 1.0]])
    merged = merge_queries(merge_keys(weights, source), target)
    torch.testing.assert_close(merged, torch.tensor([[0.45, 0.3, 0.25], [0.0, 0.0, 1.0]]))


def test_rows_of_every_head_still_sum_to_1() -> None:
    used = tokenizer("char")
    source, target = piece_words_of_text(used, "the dogs see"), piece_words_of_text(used, "a manager")
    torch.manual_seed(1)
    weights = torch.randn(1, 3, len(target.pieces), len(source.pieces)).softmax(-1)
    merged = merge_queries(merge_keys(weights, source), target)
    assert merged.shape == (1, 3, 3, 4)
    torch.testing.assert_close(merged.sum(-1), torch.ones(1, 3, 3))
    assert merged.min() >= 0
