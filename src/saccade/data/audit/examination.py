"""Looking at the texts of a corpus of any size: chunk by chunk, in any process, in constant memory.

A chunk of pairs becomes `Findings`, which travel between processes as bytes; an `Examination` adds them up.
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

from saccade.data.audit.duplicates import EXAMPLES, Again, Keys, Repetitions
from saccade.data.audit.report import (
    FEWEST_TO_JUDGE,
    KINDS,
    LONG,
    RATIO,
    RATIO_FROM,
    SEVERITIES,
    DataReport,
    Fault,
    Place,
    make_fault,
)
from saccade.data.audit.suspicious_characters import CHARACTER_KINDS, place_of, remarkable_characters
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair

EXCERPT = 60  # characters shown of a text


class Example(NamedTuple):
    """A pair with a fault, by its number in its corpus, and what it looks like."""

    pair: int
    text: str


class Found(NamedTuple):
    """How many pairs of a chunk have a fault, and the first of them."""

    total: int
    examples: list[Example]


@dataclass(frozen=True)
class Findings:
    """What one chunk of pairs has; the keys are those of the normalised texts."""

    first: int
    source_characters: int
    target_characters: int
    longest_source: int
    longest_target: int
    target_keys: tuple[int, int]  # the lowest and the highest: equal if all targets are
    found: Mapping[str, Found]
    source_keys: Keys
    pair_keys: Keys

    def __len__(self) -> int:
        return len(self.source_keys)

    def to_bytes(self) -> bytes:
        """The length of a JSON header, the header, and the two arrays."""
        arrays_apart = ("source_keys", "pair_keys")
        header = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in arrays_apart}
        data = json.dumps(header).encode("ascii")
        arrays = self.source_keys.astype("<u8").tobytes() + self.pair_keys.astype("<u8").tobytes()
        return len(data).to_bytes(8, "little") + data + arrays

    @classmethod
    def from_bytes(cls, data: bytes) -> Findings:
        """The inverse of `to_bytes`."""
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header["target_keys"] = tuple(header["target_keys"])
        header["found"] = {
            kind: Found(total, [Example(*example) for example in examples])
            for kind, (total, examples) in header["found"].items()
        }
        source_keys, pair_keys = np.frombuffer(data[end:], dtype="<u8").astype(np.uint64).reshape(2, -1)
        return cls(**header, source_keys=source_keys, pair_keys=pair_keys)


def examine_chunk(pairs: Sequence[Pair], first: int) -> Findings:
    """What these pairs have, the first of which is number `first` (from 1) of its corpus."""
    count = len(pairs)
    raw = [*(pair.source for pair in pairs), *(pair.target for pair in pairs)]
    texts = [normalize(text, "nfkc") for text in raw]
    keys = keys_of(texts)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=2 * count)
    found: dict[str, Found] = {}

    def note(kind: str, places: Iterable[int]) -> None:
        """The places say which of the texts show the fault: sources first, then targets."""
        by_pair: dict[int, int] = {}
        for place in places:
            by_pair.setdefault(place % count, place)
        if by_pair:
            shown = sorted(by_pair.items())[:EXAMPLES]
            examples = [Example(first + pair, describe(kind, raw[place], place < count)) for pair, place in shown]
            found[kind] = Found(len(by_pair), examples)

    source_lengths, target_lengths = lengths[:count], lengths[count:]
    longer, shorter = np.maximum(source_lengths, target_lengths), np.minimum(source_lengths, target_lengths)
    longer_side = np.where(source_lengths >= target_lengths, 0, count) + np.arange(count)
    note("empty-source", np.flatnonzero(source_lengths == 0).tolist())
    note("empty-target", (count + np.flatnonzero(target_lengths == 0)).tolist())
    note("identical", np.flatnonzero((keys[:count] == keys[count:]) & (shorter > 0)).tolist())
    note("long", np.flatnonzero(lengths > LONG).tolist())
    note("ratio", longer_side[(longer > RATIO * shorter) & (longer > RATIO_FROM) & (shorter > 0)].tolist())
    for kind, places in remarkable_characters(raw).items():
        note(kind, places)

    return Findings(
        first=first,
        source_characters=int(source_lengths.sum()),
        target_characters=int(target_lengths.sum()),
        longest_source=int(source_lengths.max(initial=0)),
        longest_target=int(target_lengths.max(initial=0)),
        target_keys=(int(keys[count:].min()), int(keys[count:].max())) if count else (sys.maxsize, 0),
        found=found,
        source_keys=keys[:count],
        pair_keys=combine(keys[:count], keys[count:]),
    )


def keys_of(texts: Iterable[str]) -> Keys:
    """A 64-bit key of each normalised text, the same in every process."""
    blake2b = hashlib.blake2b
    digests = b"".join([blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def combine(source_keys: Keys, target_keys: Keys) -> Keys:
    """The key of a pair; the halves of one are swapped, so that equal sides do not cancel out."""
    swapped = (target_keys << np.uint64(32)) | (target_keys >> np.uint64(32))
    combined: Keys = source_keys * np.uint64(0x9E3779B97F4A7C15) + swapped
    return combined


def describe(kind: str, text: str, is_source: bool) -> str:
    """An example in a few words: the side if it is not clear, the code point if it cannot be seen, and the text."""
    if kind in ("empty-source", "empty-target"):
        return ""
    middle = place_of(kind, text)
    name = f"U+{ord(text[middle]):04X} in the " if kind in CHARACTER_KINDS else ""
    side = "source " if is_source else "target "
    return f"{'' if kind == 'identical' else name + side}{excerpt(text, middle)}"


def excerpt(text: str, middle: int = 0) -> str:
    """The part of a text around a place, with what cannot be seen written as escapes."""
    start = max(0, min(middle - EXCERPT // 2, len(text) - EXCERPT))
    part = text[start : start + EXCERPT]
    return f"{'… ' * (start > 0)}{part!r}{' …' * (start + EXCERPT < len(text))}"


EMPTY = keys_of([""])


class Known(NamedTuple):
    """The pairs of a chunk with text on both sides: the others are faulty anyway, and would all be alike."""

    numbers: NDArray[np.int64]
    source_keys: Keys
    pair_keys: Keys

    @classmethod
    def of(cls, findings: Findings) -> Known:
        """Those of one chunk."""
        sources, pairs = findings.source_keys, findings.pair_keys
        (kept,) = np.nonzero((sources != EMPTY) & (pairs != combine(sources, EMPTY)))
        return cls(findings.first + kept, sources[kept], pairs[kept])


class Overlap:
    """Which pairs of held-out data occur in the training data, by one kind of keys."""

    def __init__(self, kind: str, pairs: Sequence[Pair], numbers: NDArray[np.int64], keys: Keys) -> None:
        self.kind = kind
        self._pairs = pairs
        self._keys, firsts, self._counts = np.unique(keys, return_index=True, return_counts=True)
        self._places = numbers[firsts] - 1
        self._seen = np.zeros(len(self._keys), dtype=bool)
        self._examples: list[tuple[int, Example]] = []

    def add(self, corpus: int, numbers: NDArray[np.int64], keys: Keys) -> None:
        """Look for the keys of training pairs with these numbers."""
        if not len(self._keys):
            return
        nearest = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        (hits,) = np.nonzero(self._keys[nearest] == keys)
        self._seen[nearest[hits]] = True
        for hit in hits[:EXAMPLES].tolist():
            text = excerpt(self._pairs[int(self._places[nearest[hit]])].source)
            self._examples.append((corpus, Example(int(numbers[hit]), text)))
        self._examples = sorted(self._examples)[:EXAMPLES]

    def fault(self, corpora: Sequence[str]) -> Fault | None:
        """How many of the held-out pairs were seen, and where."""
        count = int(self._counts[self._seen].sum())
        if not count:
            return None
        return make_fault(self.kind, count, len(self._pairs), located(self._examples, corpora))


def overlaps(name: str, pairs: Sequence[Pair]) -> list[Overlap]:
    """What to look for in the training data: the pairs of held-out data, and their sources alone."""
    known = Known.of(examine_chunk(pairs, 1))
    return [
        Overlap(f"{name}-pair", pairs, known.numbers, known.pair_keys),
        Overlap(f"{name}-source", pairs, known.numbers, known.source_keys),
    ]


def located(examples: Iterable[tuple[int, Example]], corpora: Sequence[str]) -> tuple[Place, ...]:
    """Examples with the names of their corpora."""
    return tuple(Place(corpora[corpus], example.pair, example.text) for corpus, example in examples)


class Examination:
    """Adds up the findings of all chunks, in whatever order they come; `sources` are the names of the corpora."""

    def __init__(self, sources: Sequence[str], valid: Sequence[Pair] = (), *, test: Sequence[Pair] = ()) -> None:
        self._corpora = tuple(sources)
        self._overlaps = [*overlaps("valid", valid), *overlaps("test", test)]
        self._repetitions = Repetitions()
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[tuple[int, Example]]] = {}
        self._pairs = self._source_characters = self._target_characters = 0
        self._longest_source = self._longest_target = 0
        self._source_keys: tuple[int, int] | None = None  # the lowest and the highest
        self._target_keys: tuple[int, int] | None = None

    def add(self, corpus: int, findings: Findings) -> None:
        """Add what was found in a chunk of a corpus."""
        if not len(findings):
            return
        self._pairs += len(findings)
        self._source_characters += findings.source_characters
        self._target_characters += findings.target_characters
        self._longest_source = max(self._longest_source, findings.longest_source)
        self._longest_target = max(self._longest_target, findings.longest_target)
        for kind, (total, examples) in findings.found.items():
            self._counts[kind] += total
            kept = [*self._examples.get(kind, ()), *((corpus, example) for example in examples)]
            self._examples[kind] = sorted(kept)[:EXAMPLES]
        sources = int(findings.source_keys.min()), int(findings.source_keys.max())
        self._source_keys = spanned(self._source_keys, sources)
        self._target_keys = spanned(self._target_keys, findings.target_keys)
        known = Known.of(findings)
        for overlap in self._overlaps:
            keys = known.pair_keys if overlap.kind.endswith("-pair") else known.source_keys
            overlap.add(corpus, known.numbers, keys)
        self._repetitions.add(corpus, *known)

    def finish(self) -> DataReport:
        """The report; nothing can be added afterwards."""
        faults = [
            make_fault(kind, count, self._pairs, located(self._examples[kind], self._corpora))
            for kind, count in self._counts.items()
        ]
        for kind, keys in (("equal-sources", self._source_keys), ("equal-targets", self._target_keys)):
            if keys is not None and keys[0] == keys[1] != int(EMPTY[0]) and self._pairs >= FEWEST_TO_JUDGE:
                faults.append(make_fault(kind, self._pairs, self._pairs))
        repetitions = self._repetitions
        repetitions.count()
        if repetitions.duplicates:
            places = self._referring("repeats", repetitions.duplicate_examples)
            faults.append(make_fault("duplicate", repetitions.duplicates, self._pairs, places))
        if repetitions.ambiguous:
            places = self._referring("has the source of", repetitions.ambiguous_examples)
            faults.append(make_fault("ambiguous", repetitions.ambiguous, self._pairs, places))
        faults += [fault for overlap in self._overlaps if (fault := overlap.fault(self._corpora))]
        order = list(KINDS)
        return DataReport(
            corpora=self._corpora,
            pairs=self._pairs,
            source_characters=self._source_characters,
            target_characters=self._target_characters,
            longest_source=self._longest_source,
            longest_target=self._longest_target,
            faults=tuple(sorted(faults, key=lambda fault: (SEVERITIES.index(fault.severity), order.index(fault.kind)))),
        )

    def _referring(self, how: str, examples: Iterable[Again]) -> tuple[Place, ...]:
        """Places that refer to an earlier pair."""
        places: list[Place] = []
        for again in examples:
            where = "" if again.first_corpus == again.corpus else f" of {self._corpora[again.first_corpus]}"
            text = f"{how} pair {again.first_number:,}{where}"
            places.append(Place(self._corpora[again.corpus], again.number, text))
        return tuple(places)


def spanned(before: tuple[int, int] | None, more: tuple[int, int]) -> tuple[int, int]:
    """The range of both."""
    return more if before is None else (min(before[0], more[0]), max(before[1], more[1]))
