"""What an unknown word of an output stands for: the source word that the model looked at when it wrote it.

Luong et al. 2015, "Addressing the Rare Word Problem in Neural Machine Translation", section 3.3: an unknown word is
translated by a dictionary through its alignment, or copied. This is the "PosUnk" of Zhou et al. 2016 (Deep-Att).

Departure: Luong et al. annotate the training data so that an unknown symbol says at which distance its source word
stands. Here the alignment is the model's attention, so every model with cross-attention can do it as it is. It is the
mean over all heads of all cross-attention layers: what `saccade attention` and `--alignment` show, so that a person can
see why a word was taken. A model with one such layer and one head has no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.data.lexicon.lexicon_file import Lexicon
from saccade.data.reading.normalization import normalize
from saccade.data.tokenizers.tokenizer import UNKNOWN, Tokenizer
from saccade.errors import SaccadeError
from saccade.interface import Attention, Source, Translates
from saccade.symbols import Symbols

NO_WORD = -1


@dataclass(frozen=True)
class Words:
    """The words of a text as they are written, and which of them each piece belongs to."""

    words: tuple[str, ...]
    of_piece: tuple[int, ...]  # NO_WORD for a piece that is only a space


@dataclass(frozen=True)
class TargetWord:
    """A word of an output: its text, or the places of the unknown symbols in it."""

    text: str
    unknown: tuple[int, ...] = ()


def words_of(tokenizer: Tokenizer, text: str) -> Words:
    """Words stand between spaces; a text is normalised as the tokenizer does it, and nothing else is changed."""
    normalised = normalize(text, tokenizer.normalization)
    word_at = [0] * (len(normalised) + 1)  # the number of the word that each character belongs to
    for place, character in enumerate(normalised):
        word_at[place + 1] = word_at[place] + (character == " ")
    of_piece: list[int] = []
    for start, end in tokenizer.encode(text).offsets:
        letters = normalised[start:end].lstrip(" ")  # a piece may carry the space before it
        of_piece.append(word_at[end - len(letters)] if letters else NO_WORD)
    return Words(tuple(normalised.split(" ")), tuple(of_piece))


def target_words(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[TargetWord]:
    """The words of an output; one with an unknown symbol in it is unknown as a whole.

    The text between two symbols is decoded with a symbol on either side and cut out: what the tokenizer writes between
    two pieces depends on both, and the symbol's own spelling could also be a word of the user's.
    """
    unknown = tokenizer.symbols.unknown
    places = [place for place, token in enumerate(tokens) if token == unknown]
    bounds = [-1, *places, len(tokens)]
    parts: list[str | int] = []  # texts and places of unknown symbols, in turn
    for before, after in pairwise(bounds):
        first, last = before >= 0, after < len(tokens)
        text = tokenizer.decode([*[unknown] * first, *tokens[before + 1 : after], *[unknown] * last])
        text = text.removeprefix(UNKNOWN) if first else text
        parts.append(text.removesuffix(UNKNOWN) if last else text)
        if last:
            parts.append(after)
    words: list[TargetWord] = []
    open_word = False  # whether the last word goes on
    for part in parts:
        if isinstance(part, int):
            known = words.pop() if open_word else TargetWord("")
            words.append(TargetWord("", (*known.unknown, part)))
            open_word = True
            continue
        pieces = part.split()
        if pieces and open_word and not part[0].isspace():
            first_piece = pieces.pop(0)
            words[-1] = words[-1] if words[-1].unknown else TargetWord(words[-1].text + first_piece)
        words += [TargetWord(piece) for piece in pieces]
        if part:
            open_word = not part[-1].isspace()
    return words


def replaced_text(
    target: Tokenizer,
    tokens: Sequence[int],
    alignment: Tensor,
    source: Words,
    lexicon: Lexicon | None,
    forced: Words | None = None,
) -> str:
    """An output with a word for every unknown one; alignment (T, S) has a row a token, and the source's end may follow.

    A word that was forced by a prefix is written as it stands in the prefix.
    """
    written: list[str] = []
    for word in target_words(target, tokens):
        given = forced_word(word, forced)
        if not word.unknown:
            written.append(word.text)
        elif given is not None:
            written.append(given)
        else:
            aligned = aligned_word(alignment[list(word.unknown)].sum(0), source)
            entry = lexicon.find(aligned) if lexicon is not None else None
            written.append(aligned if entry is None else entry)
    return normalize(" ".join(written), "none")


def forced_word(word: TargetWord, forced: Words | None) -> str | None:
    """What the prefix says in the place of an unknown word, if it reaches so far."""
    if forced is None or not word.unknown or word.unknown[0] >= len(forced.of_piece):
        return None
    number = forced.of_piece[word.unknown[0]]
    return None if number == NO_WORD else forced.words[number]


def aligned_word(weights: Tensor, source: Words) -> str:
    """The source word whose pieces have the highest weight together, weights (S,); the first one of equal ones."""
    totals = [0.0] * len(source.words)
    for number, weight in zip(source.of_piece, weights.tolist(), strict=False):  # the end and the padding come after
        if number != NO_WORD:
            totals[number] += weight
    return source.words[max(range(len(totals)), key=totals.__getitem__)]


def cross_attention(attention: Sequence[Attention], places: int) -> Tensor:
    """Where a batch looked, as the mean over all heads of all cross-attention layers: (B, T, S)."""
    layers = [record.weights.float() for record in attention if record.kind == "cross"]
    if not layers:
        raise SaccadeError(
            "this model does not attend to its source, so nobody knows which source word an unknown word stands for",
            do="set decoding.replace-unknown to none, or use a model with cross-attention",
        )
    if any(weights.size(-1) != places for weights in layers):
        raise SaccadeError(
            "this model attends to other places than the pieces of its source, so they have no alignment",
            do="set decoding.replace-unknown to none",
        )
    return torch.cat(layers, dim=1).mean(1)  # an ensemble's layers may differ in their number of heads


@torch.inference_mode()
def check_attends(model: Translates, source: Source) -> None:
    """Refuse a model that cannot tell where it looked, by one step on a short source."""
    begin = torch.full_like(source.mask[:, :1], Symbols.begin, dtype=torch.long)
    cross_attention(model.decode(begin, model.encode(source), record=True).attention, source.mask.size(1))


@torch.inference_mode()
def align(model: Translates, source: Source, outputs: Sequence[Sequence[int]], symbols: Symbols) -> list[Tensor]:
    """Where the model looked for every token of some outputs, one for each row of the source: (T, S) each.

    The last token is not read: what it was decided on is the row before it.
    """
    rows = [torch.tensor([symbols.begin, *tokens[:-1]]) for tokens in outputs]
    prefix = pad_sequence(rows, batch_first=True, padding_value=symbols.pad).to(source.mask.device)
    decoded = model.decode(prefix, model.encode(source), record=True)
    weights = cross_attention(decoded.attention, source.mask.size(1)).cpu()  # (B, T, S)
    return [row[: len(tokens)] for row, tokens in zip(weights, outputs, strict=True)]
