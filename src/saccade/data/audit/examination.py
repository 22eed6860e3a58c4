"""Examining the texts of a corpus of any size, chunk by chunk, in several processes and in constant memory.

`examine_chunk` turns a chunk of pairs into `Findings`, which are sent between processes as bytes. An `Examination`
accumulates them into a data report.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from saccade.data.audit.duplicates import MAX_EXAMPLES, DuplicateCounter, Keys, Repeat
from saccade.data.audit.report import (
    KINDS,
    MAX_CHARACTERS,
    MAX_LENGTH_RATIO,
    MIN_PAIRS_FOR_ERROR,
    MIN_RATIO_CHARACTERS,
    SEVERITIES,
    DataIssue,
    DataIssueExample,
    DataReport,
    make_issue,
)
from saccade.data.audit.suspicious_characters import CHARACTER_KINDS, find_suspicious_characters, first_position
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair

EXCERPT = 60  # characters shown of a text


class Example(NamedTuple):
    """The number of a faulty pair in its corpus, and an excerpt."""

    pair: int
    text: str


class DataIssueCount(NamedTuple):
    """The number of pairs of a chunk that have an issue, and the first of them as examples."""

    total: int
    examples: list[Example]


@dataclass(frozen=True)
class Findings:
    """Statistics and issues of one chunk of pairs; the keys are hashes of the normalized texts."""

    first: int
    source_characters: int
    target_characters: int
    longest_source: int
    longest_target: int
    target_keys: tuple[int, int]  # minimum and maximum: equal if all targets are equal
    issues: Mapping[str, DataIssueCount]
    source_keys: Keys
    pair_keys: Keys

    def __len__(self) -> int:
        return len(self.source_keys)

    def to_bytes(self) -> bytes:
        """Serialize as the length of a JSON header, the header, and the two arrays."""
        arrays_of = ("source_keys", "pair_keys")
        header = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in arrays_of}
        data = json.dumps(header).encode("ascii")
        arrays = self.source_keys.astype("<u8").tobytes() + self.pair_keys.astype("<u8").tobytes()
        return len(data).to_bytes(8, "little") + data + arrays

    @classmethod
    def from_bytes(cls, data: bytes) -> Findings:
        """The inverse of `to_bytes`."""
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header["target_keys"] = tuple(header["target_keys"])
        header["issues"] = {
            kind: DataIssueCount(total, [Example(*example) for example in examples])
            for kind, (total, examples) in header["issues"].items()
        }
        source_keys, pair_keys = np.frombuffer(data[end:], dtype="<u8").astype(np.uint64).reshape(2, -1)
        return cls(**header, source_keys=source_keys, pair_keys=pair_keys)


def examine_chunk(pairs: Sequence[Pair], first: int) -> Findings:
    """Examine a chunk of pairs; `first` is the number of its first pair in the corpus, from 1."""
    count = len(pairs)
    raw = [*(pair.source for pair in pairs), *(pair.target for pair in pairs)]
    texts = [normalize(text, "nfkc") for text in raw]
    keys = keys_of(texts)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=2 * count)
    issues: dict[str, DataIssueCount] = {}

    def record(kind: str, indices: Iterable[int]) -> None:
        """Record an issue; `indices` point into the texts: sources first, then targets."""
        by_pair: dict[int, int] = {}
        for index in indices:
            by_pair.setdefault(index % count, index)
        if by_pair:
            shown = sorted(by_pair.items())[:MAX_EXAMPLES]
            examples = [Example(first + pair, describe(kind, raw[index], index < count)) for pair, index in shown]
            issues[kind] = DataIssueCount(len(by_pair), examples)

    source_lengths, target_lengths = lengths[:count], lengths[count:]
    longer, shorter = np.maximum(source_lengths, target_lengths), np.minimum(source_lengths, target_lengths)
    longer_side = np.where(source_lengths >= target_lengths, 0, count) + np.arange(count)
    record("empty-source", np.flatnonzero(source_lengths == 0).tolist())
    record("empty-target", (count + np.flatnonzero(target_lengths == 0)).tolist())
    record("identical", np.flatnonzero((keys[:count] == keys[count:]) & (shorter > 0)).tolist())
    record("long", np.flatnonzero(lengths > MAX_CHARACTERS).tolist())
    record(
        "ratio",
        longer_side[(longer > MAX_LENGTH_RATIO * shorter) & (longer > MIN_RATIO_CHARACTERS) & (shorter > 0)].tolist(),
    )
    for kind, indices in find_suspicious_characters(raw).items():
        record(kind, indices)

    return Findings(
        first=first,
        source_characters=int(source_lengths.sum()),
        target_characters=int(target_lengths.sum()),
        longest_source=int(source_lengths.max(initial=0)),
        longest_target=int(target_lengths.max(initial=0)),
        target_keys=(int(keys[count:].min()), int(keys[count:].max())) if count else (sys.maxsize, 0),
        issues=issues,
        source_keys=keys[:count],
        pair_keys=combine(keys[:count], keys[count:]),
    )


def keys_of(texts: Iterable[str]) -> Keys:
    """Return a 64-bit hash of each text, equal in every process."""
    blake2b = hashlib.blake2b
    digests = b"".join([blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def combine(source_keys: Keys, target_keys: Keys) -> Keys:
    """Hashes of pairs; the halves of the target key are swapped, so that equal sides do not cancel out."""
    swapped = (target_keys << np.uint64(32)) | (target_keys >> np.uint64(32))
    combined: Keys = source_keys * np.uint64(0x9E3779B97F4A7C15) + swapped
    return combined


def describe(kind: str, text: str, is_source: bool) -> str:
    """Describe an example of an issue: the code point (of an unwanted character), the side, and an excerpt."""
    if kind in ("empty-source", "empty-target"):
        return ""
    middle = first_position(kind, text)
    name = f"U+{ord(text[middle]):04X} in the " if kind in CHARACTER_KINDS else ""
    side = "source " if is_source else "target "
    return f"{'' if kind == 'identical' else name + side}{excerpt(text, middle)}"


def excerpt(text: str, middle: int = 0) -> str:
    """The part of a text around a position, with unprintable characters escaped."""
    start = max(0, min(middle - EXCERPT // 2, len(text) - EXCERPT))
    part = text[start : start + EXCERPT]
    return f"{'… ' * (start > 0)}{part!r}{' …' * (start + EXCERPT < len(text))}"


EMPTY_KEY = keys_of([""])


class NonEmptyPairs(NamedTuple):
    """The pairs of a chunk with text on both sides; the others are reported as empty, and would count as duplicates."""

    numbers: NDArray[np.int64]
    source_keys: Keys
    pair_keys: Keys

    @classmethod
    def of(cls, findings: Findings) -> NonEmptyPairs:
        """The non-empty pairs of a chunk."""
        sources, pairs = findings.source_keys, findings.pair_keys
        (kept,) = np.nonzero((sources != EMPTY_KEY) & (pairs != combine(sources, EMPTY_KEY)))
        return cls(findings.first + kept, sources[kept], pairs[kept])


class Overlap:
    """Counts the pairs of held-out data that occur in the training data, by pair keys or by source keys."""

    def __init__(self, kind: str, pairs: Sequence[Pair], numbers: NDArray[np.int64], keys: Keys) -> None:
        self.kind = kind
        self._pairs = pairs
        self._keys, firsts, self._counts = np.unique(keys, return_index=True, return_counts=True)
        self._indices = numbers[firsts] - 1
        self._seen = np.zeros(len(self._keys), dtype=bool)
        self._examples: list[tuple[int, Example]] = []

    def add(self, corpus: int, numbers: NDArray[np.int64], keys: Keys) -> None:
        """Look up the keys of training pairs; `numbers` are their numbers in the corpus."""
        if not len(self._keys):
            return
        nearest = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        (hits,) = np.nonzero(self._keys[nearest] == keys)
        self._seen[nearest[hits]] = True
        for hit in hits[:MAX_EXAMPLES].tolist():
            text = excerpt(self._pairs[int(self._indices[nearest[hit]])].source)
            self._examples.append((corpus, Example(int(numbers[hit]), text)))
        self._examples = sorted(self._examples)[:MAX_EXAMPLES]

    def issue(self, corpora: Sequence[str]) -> DataIssue | None:
        """Return the issue if some held-out pairs occur in the training data, else None."""
        count = int(self._counts[self._seen].sum())
        if not count:
            return None
        return make_issue(self.kind, count, len(self._pairs), located(self._examples, corpora))


def overlaps(name: str, pairs: Sequence[Pair]) -> list[Overlap]:
    """The two overlaps of held-out data with the training data: by pairs and by sources."""
    known = NonEmptyPairs.of(examine_chunk(pairs, 1))
    return [
        Overlap(f"{name}-pair", pairs, known.numbers, known.pair_keys),
        Overlap(f"{name}-source", pairs, known.numbers, known.source_keys),
    ]


def located(examples: Iterable[tuple[int, Example]], corpora: Sequence[str]) -> tuple[DataIssueExample, ...]:
    """Examples with the names of their corpora."""
    return tuple(DataIssueExample(corpora[corpus], example.pair, example.text) for corpus, example in examples)


class Examination:
    """Accumulates the findings of all chunks, in any order; `sources` are the names of the corpora."""

    def __init__(self, sources: Sequence[str], valid: Sequence[Pair] = (), *, test: Sequence[Pair] = ()) -> None:
        self._corpora = tuple(sources)
        self._overlaps = [*overlaps("valid", valid), *overlaps("test", test)]
        self._duplicates = DuplicateCounter()
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[tuple[int, Example]]] = {}
        self._pairs = self._source_characters = self._target_characters = 0
        self._longest_source = self._longest_target = 0
        self._source_keys: tuple[int, int] | None = None  # minimum and maximum
        self._target_keys: tuple[int, int] | None = None

    def add(self, corpus: int, findings: Findings) -> None:
        """Add the findings of a chunk of a corpus."""
        if not len(findings):
            return
        self._pairs += len(findings)
        self._source_characters += findings.source_characters
        self._target_characters += findings.target_characters
        self._longest_source = max(self._longest_source, findings.longest_source)
        self._longest_target = max(self._longest_target, findings.longest_target)
        for kind, (total, examples) in findings.issues.items():
            self._counts[kind] += total
            kept = [*self._examples.get(kind, ()), *((corpus, example) for example in examples)]
            self._examples[kind] = sorted(kept)[:MAX_EXAMPLES]
        sources = int(findings.source_keys.min()), int(findings.source_keys.max())
        self._source_keys = merge_ranges(self._source_keys, sources)
        self._target_keys = merge_ranges(self._target_keys, findings.target_keys)
        pairs = NonEmptyPairs.of(findings)
        for overlap in self._overlaps:
            keys = pairs.pair_keys if overlap.kind.endswith("-pair") else pairs.source_keys
            overlap.add(corpus, pairs.numbers, keys)
        self._duplicates.add(corpus, *pairs)

    def finish(self) -> DataReport:
        """Return the data report; call it once, at the end."""
        issues = [
            make_issue(kind, count, self._pairs, located(self._examples[kind], self._corpora))
            for kind, count in self._counts.items()
        ]
        for kind, keys in (("equal-sources", self._source_keys), ("equal-targets", self._target_keys)):
            if keys is not None and keys[0] == keys[1] != int(EMPTY_KEY[0]) and self._pairs >= MIN_PAIRS_FOR_ERROR:
                issues.append(make_issue(kind, self._pairs, self._pairs))
        duplicates = self._duplicates
        duplicates.count()
        if duplicates.duplicates:
            examples = self._describe_repeats("repeats", duplicates.duplicate_examples)
            issues.append(make_issue("duplicate", duplicates.duplicates, self._pairs, examples))
        if duplicates.ambiguous:
            examples = self._describe_repeats("has the source of", duplicates.ambiguous_examples)
            issues.append(make_issue("ambiguous", duplicates.ambiguous, self._pairs, examples))
        issues += [issue for overlap in self._overlaps if (issue := overlap.issue(self._corpora))]
        order = list(KINDS)
        return DataReport(
            corpora=self._corpora,
            pairs=self._pairs,
            source_characters=self._source_characters,
            target_characters=self._target_characters,
            longest_source=self._longest_source,
            longest_target=self._longest_target,
            issues=tuple(sorted(issues, key=lambda issue: (SEVERITIES.index(issue.severity), order.index(issue.kind)))),
        )

    def _describe_repeats(self, verb: str, repeats: Iterable[Repeat]) -> tuple[DataIssueExample, ...]:
        """Return examples that name the earlier pair, as in 'repeats pair 7'."""
        examples: list[DataIssueExample] = []
        for repeat in repeats:
            where = "" if repeat.first_corpus == repeat.corpus else f" of {self._corpora[repeat.first_corpus]}"
            text = f"{verb} pair {repeat.first_number:,}{where}"
            examples.append(DataIssueExample(self._corpora[repeat.corpus], repeat.number, text))
        return tuple(examples)


def merge_ranges(before: tuple[int, int] | None, more: tuple[int, int]) -> tuple[int, int]:
    """The smallest range that contains both ranges."""
    return more if before is None else (min(before[0], more[0]), max(before[1], more[1]))
