"""The word of each piece of a text, and attention weights of pieces merged into those of words.

A word is a part of the text between spaces; a text in a script without spaces is one word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.data.reading.normalization import normalize
from saccade.data.tokenizers.tokenizer import Tokenizer

NO_WORD = -1
END = "</s>"
VISIBLE_SPACE = "▁"


@dataclass(frozen=True)
class Words:
    """The words of a text, and the index of the word that each piece belongs to."""

    words: tuple[str, ...]
    word_of_piece: tuple[int, ...]  # NO_WORD for a piece that is only a space


@dataclass(frozen=True)
class PieceWords:
    """Pieces of a text and the words they belong to; both end with the end symbol. Every word has a piece."""

    pieces: tuple[str, ...]
    words: tuple[str, ...]
    word_of_piece: tuple[int, ...]  # index of a word

    def merged(self) -> PieceWords:
        """Return the words as pieces, each of them a word."""
        return PieceWords(self.words, self.words, tuple(range(len(self.words))))


def with_replacements(found: PieceWords, texts: Mapping[int, str]) -> PieceWords:
    """Return an output whose unknown words are shown as their replacements; `texts` has them by position."""
    pieces = tuple(texts.get(position, piece) for position, piece in enumerate(found.pieces))
    words = list(found.words)
    for position, text in texts.items():
        words[found.word_of_piece[position]] = text
    return PieceWords(pieces, tuple(words), found.word_of_piece)


def words_of(tokenizer: Tokenizer, text: str) -> Words:
    """Return the words of a text, separated by spaces, after the normalization of the tokenizer."""
    normalized = normalize(text, tokenizer.normalization)
    word_at = [0] * (len(normalized) + 1)  # index of the word that each character belongs to
    for offset, character in enumerate(normalized):
        word_at[offset + 1] = word_at[offset] + (character == " ")
    word_of_piece: list[int] = []
    for start, end in tokenizer.encode(text).offsets:
        letters = normalized[start:end].lstrip(" ")  # a piece may include the space before it
        word_of_piece.append(word_at[end - len(letters)] if letters else NO_WORD)
    return Words(tuple(normalized.split(" ")), tuple(word_of_piece))


def piece_words_of_text(tokenizer: Tokenizer, text: str) -> PieceWords:
    """Return the pieces and words of a text; an unknown piece is shown as the letters that it stands for."""
    encoding = tokenizer.encode(text)
    normalized = normalize(text, tokenizer.normalization)
    pieces = [
        normalized[start:end].replace(" ", VISIBLE_SPACE) if token == tokenizer.symbols.unknown else piece
        for token, piece, (start, end) in zip(encoding.ids, encoding.pieces, encoding.offsets, strict=True)
    ]
    return with_end(pieces, words_of(tokenizer, text))


def piece_words_of_output(tokenizer: Tokenizer, tokens: Sequence[int]) -> PieceWords:
    """Return the pieces and words of an output: a token that adds a space to the text of a word begins the next one."""
    groups: list[list[int]] = []
    word_of_piece: list[int] = []
    for token in tokens:
        if groups and len(tokenizer.decode([*groups[-1], token]).split()) < 2:
            groups[-1].append(token)
        else:
            groups.append([token])
        word_of_piece.append(len(groups) - 1)
    words = tuple(tokenizer.decode(group).strip() for group in groups)
    return with_end(tokenizer.pieces(tokens), Words(words, tuple(word_of_piece)))


def with_end(pieces: Sequence[str], found: Words) -> PieceWords:
    """Append the end symbol as a word; a piece that is only a space belongs to the word after it."""
    indices = [len(found.words)]  # of the end symbol, which is the word after the last one
    for index in reversed(found.word_of_piece):
        indices.append(indices[-1] if index == NO_WORD else index)
    indices.reverse()
    used = {index: position for position, index in enumerate(sorted(set(indices)))}  # words that have a piece
    words = [(*found.words, END)[index] for index in used]
    return PieceWords((*pieces, END), tuple(words), tuple(used[index] for index in indices))


def merge_keys(weights: Tensor, words: PieceWords) -> Tensor:
    """Sum weights (…, T, S) over the S pieces of each word: (…, T, W)."""
    merged = weights.new_zeros(*weights.shape[:-1], len(words.words))
    return merged.index_add_(-1, indices_of(words, weights), weights)


def merge_queries(weights: Tensor, words: PieceWords) -> Tensor:
    """Average weights (…, T, S) over the T pieces of each word: (…, W, S)."""
    index = indices_of(words, weights)
    merged = weights.new_zeros(*weights.shape[:-2], len(words.words), weights.size(-1)).index_add_(-2, index, weights)
    return merged / index.bincount(minlength=len(words.words)).unsqueeze(-1)


def indices_of(words: PieceWords, weights: Tensor) -> Tensor:
    """Return the word of each piece as a tensor on the device of the weights."""
    return torch.tensor(words.word_of_piece, device=weights.device)
