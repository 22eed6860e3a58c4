"""A lexicon: one target word for a source word, in a TAB-separated file that anybody may write or correct.

    house<TAB>Haus<TAB>0.82
    York<TAB>York

The third column is a probability; it may be left out, and then counts as 1. Of several lines for one source word the
most probable one is used, the first one of those that are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from saccade.data.config import DataConfig, Normalization
from saccade.data.lexicon.ibm_model_1 import WordPair
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair, read_lines
from saccade.data.reading.pair_stream import training_pairs
from saccade.data.reading.text_lines import FileError
from saccade.data.tokenizers.tokenizer import CHUNK_LINES, Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.folder import replace_file
from saccade.untrusted_files import shown

EXAMPLE = "write one entry a line: source word, TAB, target word, and if you like TAB and a probability"


@dataclass(frozen=True)
class Lexicon:
    """What each source word becomes; words are NFC."""

    entries: Mapping[str, str]

    def find(self, word: str) -> str | None:
        """The entry of a word as it is written, else that of its small letters, written in the case of the word."""
        word = normalize(word, "nfc")
        if word in self.entries:
            return self.entries[word]
        small = self.entries.get(word.lower())
        return None if small is None else in_case_of(word, small)


def in_case_of(word: str, entry: str) -> str:
    """An entry in capitals like the word, or with its first letter like that of the word."""
    if word.isupper() and sum(letter.isupper() for letter in word) > 1:
        return entry.upper()
    if word[:1].isupper():
        return entry[:1].upper() + entry[1:]
    return entry


def read_lexicon(path: str | Path) -> Lexicon:
    """Read a lexicon, plain or .gz; the first bad line is named."""
    entries: dict[str, WordPair] = {}
    for entry in read_entries(path):
        known = entries.get(entry.source)
        if known is None or entry.probability > known.probability:
            entries[entry.source] = entry
    return Lexicon({source: entry.target for source, entry in entries.items()})


def read_entries(path: str | Path) -> Iterator[WordPair]:
    """Every line of a lexicon but the blank ones."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield parse_entry(line, path, number)


def parse_entry(line: str, path: str | Path, number: int, normalization: Normalization | None = "nfc") -> WordPair:
    """What one line says; without a normalization the words are as they stand."""

    def fault(kind: str, what: str) -> FileError:
        return FileError(kind, what, file=path, line=number, do=EXAMPLE)

    fields = line.split("\t")
    if not 2 <= len(fields) <= 3:
        raise fault("columns", f"has {len(fields)} column{'s' * (len(fields) > 1)}, not 2 or 3")
    source, target = (normalize(field, normalization) if normalization else field for field in fields[:2])
    if not source or not target:
        raise fault("no-text", f"has no {'target' if source else 'source'} word")
    if " " in source:
        raise fault("columns", f"the source {shown(source)} is more than one word")
    if len(fields) == 2:
        return WordPair(source, target, 1.0)
    try:
        probability = float(fields[2])
    except ValueError:
        probability = math.nan
    if not 0 <= probability <= 1:
        raise fault("columns", f"{shown(fields[2])} is no probability")
    return WordPair(source, target, probability)


def write_lexicon(path: str | Path, entries: Iterable[WordPair]) -> None:
    """Write a lexicon, which is the old one or the new one, never a torn one."""
    lines = [f"{entry.source}\t{entry.target}\t{entry.probability:.6g}\n" for entry in entries]
    replace_file(Path(path), "".join(lines))


class CorpusPairs:
    """The pairs of all training files, read anew whenever they are asked for."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    def __iter__(self) -> Iterator[Pair]:
        for corpus in range(len(self.config.source)):
            yield from training_pairs(self.config, corpus)


class PiecePairs:
    """Pairs as the pieces of some tokenizers, with spaces between, so that a lexicon can be learnt of pieces."""

    def __init__(self, pairs: Iterable[Pair], tokenizers: Tokenizers) -> None:
        self.pairs = pairs
        self.tokenizers = tokenizers

    def __iter__(self) -> Iterator[Pair]:
        pairs = iter(self.pairs)
        while some := list(islice(pairs, CHUNK_LINES)):
            sources = pieces_of(self.tokenizers.source, [pair.source for pair in some])
            targets = pieces_of(self.tokenizers.target, [pair.target for pair in some])
            yield from map(Pair, sources, targets)


def pieces_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Each text as its pieces with spaces between."""
    return [" ".join(tokenizer.pieces(ids)) for ids in tokenizer.encode_batch(texts)]
