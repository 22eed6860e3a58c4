"""Inputs that are longer than the sources of the training data: they are split into parts, or truncated.

A part has at most `max_source` tokens. It ends at the last sentence end that fits, else at the last word, else at the
last character. The outputs of the parts are joined.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from saccade import messages
from saccade.data.reading.normalization import normalize
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.decoding.config import DecodingConfig
from saccade.inference.distinct_outputs import merge_duplicates, merges_duplicates
from saccade.inference.translation import Candidate, Part, Translation

DEFAULT_MAX_SOURCE = 1024  # for a model folder that does not record the longest source of its training data
TOKENIZED_AT_ONCE = 20_000  # characters; a call of the tokenizer cannot be interrupted

# A sentence ends after its punctuation and closing quotes; a space follows, except in Chinese and Japanese.
SENTENCE_END = re.compile(r"""[.!?…؟۔।]+["'”’»)\]]*(?=\s)|[。！？｡]+["'”’」』）]*""")
WORD_END = re.compile(r"\S(?=\s)")
# Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")


class SplitText(NamedTuple):
    """A text in parts."""

    parts: list[str]
    in_word: list[bool]  # whether the boundary before each part is inside a word
    tokens: int  # of all parts

    def truncated(self) -> SplitText:
        """Return the text with its first part only."""
        return SplitText(self.parts[:1], self.in_word[:1], self.tokens)


@dataclass
class LongSourceReport:
    """Warns of the first long input of a stream, and counts the others."""

    settings: DecodingConfig
    count: int = 0

    def add(self, index: int, text: SplitText, limit: int) -> None:
        """Report that the input at an index was split or truncated."""
        self.count += 1
        truncates = self.settings.long_source == "truncate"
        how = "the rest is not translated" if truncates else f"translated in {len(text.parts):,} parts"
        what = f"input line {index + 1:,} has {text.tokens:,} tokens, the limit is {limit:,}: {how}"
        if self.count > 1:
            messages.detail(f"warning: {what}")
        else:
            messages.warn(f"warning: {what}\n  decoding.max-source sets the limit, decoding.long-source what is done")

    def finish(self) -> None:
        """Report the number of the other long inputs."""
        if self.count > 1:
            others = f"{self.count - 1:,} more input line{'s' if self.count > 2 else ''}"
            messages.warn(f"warning: {others} had more tokens than decoding.max-source (--verbose lists them)")


def token_ends(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the end of every token of a normalized text, as character positions in it, ascending."""
    ends: list[int] = []
    first = 0
    while first < len(text):
        last = min(first + TOKENIZED_AT_ONCE, len(text))
        if last < len(text):
            space = text.rfind(" ", first + 1, last)
            last = space if space > 0 else last
        ends += [first + end for _, end in tokenizer.encode(text[first:last]).offsets]
        first = last
        if text[first : first + 1] == " ":  # would be stripped from the next call
            first += 1
            if tokenizer.kind in ("char", "byte"):
                ends.append(first)
    return ends


def split_text(text: str, tokenizers: Sequence[Tokenizer], limit: int, *, at_sentences: bool = True) -> SplitText:
    """Split a text into parts of at most `limit` tokens by every tokenizer."""
    text = normalize(text, tokenizers[0].normalization)
    ends = [token_ends(tokenizer, text) for tokenizer in tokenizers]
    boundaries = [match.end() for match in SENTENCE_END.finditer(text)] if at_sentences else []
    words = [match.end() for match in WORD_END.finditer(text)]
    parts: list[str] = []
    in_word: list[bool] = []
    first, splits_word = 0, False
    while first < len(text):
        reach = min(farthest_end(own, first, limit, len(text)) for own in ends)
        last = len(text)
        if reach < len(text):
            reach = max(reach, first + 1)
            last = last_between(boundaries, first, reach) or last_between(words, first, reach) or reach
        parts.append(text[first:last].strip())
        in_word.append(splits_word)
        splits_word = last < len(text) and not text[last].isspace() and not UNSPACED.match(text[last - 1])
        first = last + (last < len(text) and text[last].isspace())
    return SplitText(parts, in_word, max(map(len, ends)))


def farthest_end(ends: Sequence[int], first: int, limit: int, length: int) -> int:
    """Return the end of the last of `limit` tokens after a character position, in a text of some length."""
    last = bisect_right(ends, first) + limit - 1
    # The tokens of one character, such as its bytes, have one end: a part must not contain only some of them.
    while 0 < last < len(ends) - 1 and ends[last] == ends[last + 1] and ends[last - 1] > first:
        last -= 1
    return ends[last] if last < len(ends) - 1 else length


def last_between(positions: Sequence[int], first: int, last: int) -> int | None:
    """Return the last of ascending positions that is above `first` and at most `last`."""
    index = bisect_right(positions, last) - 1
    return positions[index] if index >= 0 and positions[index] > first else None


def join_parts(
    text: str, split: SplitText, translations: Sequence[Translation], settings: DecodingConfig, index: int
) -> Translation:
    """Join the outputs of the parts of a text: the n best combinations, or n samples in random combinations."""
    lists = [list(translation.candidates) for translation in translations]
    if settings.sample:  # every list is ranked, so samples of equal rank would not be independent
        for number, samples in enumerate(lists):
            random.Random(f"{settings.seed} {index} {number}").shuffle(samples)
        combinations = [list(row) for row in zip_longest(*lists, fillvalue=None)]
        joined = [join_candidates(split, translations, [one for one in row if one]) for row in combinations]
    else:
        count = 2 * settings.nbest if merges_duplicates(settings) else settings.nbest  # some have equal texts
        best: list[list[Candidate]] = [[]]
        for candidates in lists:
            best = best_combinations(best, candidates, count)
        joined = [join_candidates(split, translations, combination) for combination in best]
    if merges_duplicates(settings):
        return Translation(text, merge_duplicates(joined)[: settings.nbest])
    if len(joined) > 1:
        joined.sort(key=lambda candidate: (candidate.finished, candidate.score), reverse=True)
    return Translation(text, tuple(joined))


def best_combinations(
    combinations: Sequence[list[Candidate]], candidates: Sequence[Candidate], count: int
) -> list[list[Candidate]]:
    """Return the `count` best combinations with one candidate more; both lists have their best first.

    A combination of ranks i and j, from 0, is no better than the (i + 1)(j + 1) combinations of ranks up to i and j.
    """
    if count == 1:
        return [[*combinations[0], candidates[0]]]
    pairs = [
        (rank, other) for rank in range(len(combinations)) for other in range(min(len(candidates), count // (rank + 1)))
    ]
    found = [[*combinations[rank], candidates[other]] for rank, other in pairs]
    found.sort(key=lambda row: (all(one.finished for one in row), sum(one.score for one in row)), reverse=True)
    return found[:count]


def join_candidates(
    split: SplitText, translations: Sequence[Translation], candidates: Sequence[Candidate]
) -> Candidate:
    """Return one output from the outputs of consecutive parts; its score is the mean of theirs."""
    text = ""
    for candidate, in_word in zip(candidates, split.in_word, strict=False):
        text += separator(text, candidate.text, in_word) + candidate.text
    return Candidate(
        text,
        tuple(token for candidate in candidates for token in candidate.tokens),
        math.fsum(candidate.score for candidate in candidates) / len(candidates),
        math.fsum(candidate.log_probability for candidate in candidates),
        tuple(piece for candidate in candidates for piece in candidate.pieces),
        tuple(value for candidate in candidates for value in candidate.token_log_probabilities),
        finished=all(candidate.finished for candidate in candidates),
        parts=tuple(
            Part(translation.source, candidate)
            for translation, candidate in zip(translations, candidates, strict=False)
        ),
    )


def separator(before: str, after: str, in_word: bool) -> str:
    """Return the text between two outputs: a space, except inside a word and in scripts without spaces."""
    if not before or not after or in_word or UNSPACED.match(before[-1]) or UNSPACED.match(after[0]):
        return ""
    return " "
