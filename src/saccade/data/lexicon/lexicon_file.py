"""A bilingual lexicon in a TAB-separated file that users can edit.

    house<TAB>Haus<TAB>0.82
    York<TAB>York

The third column is a probability, by default 1. If a source word has several lines, the most probable one is used, and
the first of equally probable ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from saccade.arguments import check_mapping, check_text
from saccade.data.config import Normalization
from saccade.data.lexicon.ibm_model_1 import WordPair
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import read_lines
from saccade.data.reading.text_lines import FileError
from saccade.folder import replace_file
from saccade.untrusted_files import shown

EXAMPLE = "write one entry per line: source word, TAB, target word, optionally TAB and a probability"


@dataclass(frozen=True)
class Lexicon:
    """The target word of each source word, in Unicode NFC."""

    entries: Mapping[str, str]

    def __post_init__(self) -> None:
        hint = 'give a dict such as {"Munich": "München"}, or read a file: read_lexicon(path)'
        check_mapping(self.entries, "entries", hint=hint)
        for source, target in self.entries.items():
            check_text(target, f"entries[{source!r}]", hint=hint)

    def find(self, word: str) -> str | None:
        """Return the translation of a word, else that of the lowercased word, capitalized like the word; else None."""
        word = normalize(word, "nfc")
        if word in self.entries:
            return self.entries[word]
        lowercase = self.entries.get(word.lower())
        return None if lowercase is None else match_case(word, lowercase)


def match_case(word: str, entry: str) -> str:
    """Return the entry capitalized like the word: in upper case, with a capital first letter, or unchanged."""
    if word.isupper() and sum(letter.isupper() for letter in word) > 1:
        return entry.upper()
    if word[:1].isupper():
        return entry[:1].upper() + entry[1:]
    return entry


def read_lexicon(path: str | Path) -> Lexicon:
    """Read a lexicon file, plain or .gz; an error names the first invalid line."""
    entries: dict[str, WordPair] = {}
    for entry in read_entries(path):
        known = entries.get(entry.source)
        if known is None or entry.probability > known.probability:
            entries[entry.source] = entry
    return Lexicon({source: entry.target for source, entry in entries.items()})


def read_entries(path: str | Path) -> Iterator[WordPair]:
    """Yield the entries of a lexicon file; blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield parse_entry(line, path, number)


def parse_entry(line: str, path: str | Path, number: int, normalization: Normalization | None = "nfc") -> WordPair:
    """Parse one line; with normalization None the words are not changed."""

    def error(kind: str, what: str) -> FileError:
        return FileError(kind, what, file=path, line=number, hint=EXAMPLE)

    fields = line.split("\t")
    if not 2 <= len(fields) <= 3:
        raise error("columns", f"has {len(fields)} column{'s' * (len(fields) > 1)}, not 2 or 3")
    source, target = (normalize(field, normalization) if normalization else field for field in fields[:2])
    if not source or not target:
        raise error("no-text", f"has no {'target' if source else 'source'} word")
    if " " in source:
        raise error("columns", f"the source {shown(source)} is more than one word")
    if len(fields) == 2:
        return WordPair(source, target, 1.0)
    try:
        probability = float(fields[2])
    except ValueError:
        probability = math.nan
    if not 0 <= probability <= 1:
        raise error("columns", f"{shown(fields[2])} is not a probability")
    return WordPair(source, target, probability)


def write_lexicon(path: str | Path, entries: Iterable[WordPair]) -> None:
    """Write a lexicon file atomically."""
    lines = [f"{entry.source}\t{entry.target}\t{entry.probability:.6g}\n" for entry in entries]
    replace_file(Path(path), "".join(lines))
