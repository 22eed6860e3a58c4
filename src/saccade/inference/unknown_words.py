"""Replacement of unknown words in an output by the source words with the most attention.

Luong et al. 2015, "Addressing the Rare Word Problem in Neural Machine Translation", section 3.3: an unknown word is
translated by a dictionary through its alignment, or copied. This is the "PosUnk" of Zhou et al. 2016 (Deep-Att).

Departure: Luong et al. annotate the training data so that an unknown symbol encodes the distance to its source word.
Here the alignment is attention, so every model with cross-attention supports it without training. It is the mean over
all heads of all cross-attention layers, which `saccade attention` and `--alignment` show too. A model with one such
layer and one head has no other alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.data.lexicon.lexicon_file import Lexicon
from saccade.data.reading.normalization import normalize
from saccade.data.tokenizers.tokenizer import UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.inference.explanation import mean_cross_attention
from saccade.inference.words import NO_WORD, Words
from saccade.interface import Attention, EncoderDecoder, Source
from saccade.symbols import Symbols


@dataclass(frozen=True)
class OutputWord:
    """A word of an output: its text, or the positions of its unknown symbols."""

    text: str
    unknown: tuple[int, ...] = ()


def output_words(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[OutputWord]:
    """Return the words of an output; a word that contains an unknown symbol is unknown.

    The text between two unknown symbols is decoded together with them and cut out: the spacing that a tokenizer decodes
    depends on both neighbors, and the user's own text may contain the spelling of the symbol.
    """
    unknown = tokenizer.symbols.unknown
    boundaries = [-1, *(position for position, token in enumerate(tokens) if token == unknown), len(tokens)]
    segments: list[str | int] = []  # texts and positions of unknown symbols, alternating
    for before, after in pairwise(boundaries):
        left, right = before >= 0, after < len(tokens)  # whether an unknown symbol is there
        text = tokenizer.decode([*[unknown] * left, *tokens[before + 1 : after], *[unknown] * right])
        text = text.removeprefix(UNKNOWN) if left else text
        segments.append(text.removesuffix(UNKNOWN) if right else text)
        if right:
            segments.append(after)
    words: list[OutputWord] = []
    word_is_open = False  # whether the next segment may continue the last word
    for segment in segments:
        if isinstance(segment, int):
            start = words.pop() if word_is_open else OutputWord("")
            words.append(OutputWord("", (*start.unknown, segment)))
            word_is_open = True
            continue
        pieces = segment.split()
        if pieces and word_is_open and not segment[0].isspace():
            first_piece = pieces.pop(0)
            words[-1] = words[-1] if words[-1].unknown else OutputWord(words[-1].text + first_piece)
        words += [OutputWord(piece) for piece in pieces]
        if segment:
            word_is_open = not segment[-1].isspace()
    return words


def text_with_replacements(
    target: Tokenizer,
    tokens: Sequence[int],
    alignment: Tensor,
    source: Words,
    lexicon: Lexicon | None,
    prefix: Words | None = None,
) -> str:
    """Return the text of an output with its unknown words replaced; alignment (T, S or more columns)."""
    words = words_with_replacements(target, tokens, alignment, source, lexicon, prefix)
    return normalize(" ".join(word.text for word in words), "none")


def words_with_replacements(
    target: Tokenizer,
    tokens: Sequence[int],
    alignment: Tensor,
    source: Words,
    lexicon: Lexicon | None,
    prefix: Words | None = None,
) -> list[OutputWord]:
    """Return the words of an output, unknown ones with their replacement as text; alignment (T, S or more columns).

    An unknown word that was forced by a prefix is copied from the prefix.
    """
    words: list[OutputWord] = []
    for word in output_words(target, tokens):
        text = forced_word(word, prefix) if word.unknown else word.text
        if text is None:
            aligned = aligned_word(alignment[list(word.unknown)].sum(0), source)
            entry = lexicon.find(aligned) if lexicon is not None else None
            text = aligned if entry is None else entry
        words.append(replace(word, text=text))
    return words


def forced_word(word: OutputWord, prefix: Words | None) -> str | None:
    """Return the word of the prefix at the position of an unknown word; None if the prefix is shorter."""
    if prefix is None or not word.unknown or word.unknown[0] >= len(prefix.word_of_piece):
        return None
    index = prefix.word_of_piece[word.unknown[0]]
    return None if index == NO_WORD else prefix.words[index]


def aligned_word(weights: Tensor, source: Words) -> str:
    """Return the source word whose pieces have the largest sum of weights (S,); the first one in a tie."""
    totals = [0.0] * len(source.words)
    for index, weight in zip(source.word_of_piece, weights.tolist(), strict=False):  # without end symbol and padding
        if index != NO_WORD:
            totals[index] += weight
    return source.words[max(range(len(totals)), key=totals.__getitem__)]


def alignments_of(attention: Sequence[Attention], positions: int) -> Tensor:
    """Return the mean cross-attention of a batch (B, T, S); raise an error if it is not over S source positions."""
    if any(record.weights.size(-1) != positions for record in attention if record.kind == "cross"):
        raise SaccadeError(
            "the cross-attention of this model does not cover the source tokens one by one, so there is no alignment",
            hint="set decoding.replace-unknown to none",
        )
    weights = mean_cross_attention(attention)
    if weights is None:
        raise SaccadeError(
            "this model has no cross-attention, so an unknown word has no aligned source word",
            hint="set decoding.replace-unknown to none, or use a model with cross-attention",
        )
    return weights


@torch.inference_mode()
def check_cross_attention(model: EncoderDecoder, source: Source) -> None:
    """Raise an error if a model records no alignment, by one position of a target on a short source."""
    begin = torch.full_like(source.mask[:, :1], Symbols.begin, dtype=torch.long)
    alignments_of(model.decode(begin, model.encode(source), record=True).attention, source.mask.size(1))


@torch.inference_mode()
def align(model: EncoderDecoder, source: Source, outputs: Sequence[Sequence[int]], symbols: Symbols) -> list[Tensor]:
    """Return the alignments (T, S) of outputs, one output for each row of the source.

    The last token is not part of the prefix: the row of a token is the position that predicts it.
    """
    prefixes = [torch.tensor([symbols.begin, *tokens[:-1]]) for tokens in outputs]
    prefix = pad_sequence(prefixes, batch_first=True, padding_value=symbols.pad).to(source.mask.device)  # (B, T)
    decoded = model.decode(prefix, model.encode(source), record=True)
    weights = alignments_of(decoded.attention, source.mask.size(1)).cpu()  # (B, T, S)
    return [row[: len(tokens)] for row, tokens in zip(weights, outputs, strict=True)]
