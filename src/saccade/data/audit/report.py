"""What is remarkable about the texts of some data: what, how often, where, and how bad that is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "information"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "information")

LONG = 5_000
"""Characters from which on a text is very long."""
RATIO = 9
"""How many times longer one side may be than the other, if it has more than `RATIO_FROM` characters."""
RATIO_FROM = 20


class Kind(NamedTuple):
    """One thing that the texts may have; up to the tolerated share it is information, above it a warning."""

    says: str  # goes on after "12 pairs (3.4 %) "
    tolerated: float
    do: str


# A share of 1 is tolerated always. Texts of millions of lines have a few of everything: a warning must mean something.
KINDS: dict[str, Kind] = {
    "empty-source": Kind("have an empty source", 0.01, "such pairs are dropped; are the files aligned?"),
    "empty-target": Kind("have an empty target", 0.01, "such pairs are dropped; are the files aligned?"),
    "equal-sources": Kind("have one and the same source", 0.0, "a wrong file, or a wrong --data.source-column"),
    "equal-targets": Kind("have one and the same target", 0.0, "a wrong file, or a wrong --data.target-column"),
    "identical": Kind("have the same text on both sides", 0.1, "untranslated lines, or a wrong file"),
    "misread": Kind(
        "have text that looks like UTF-8 read as Latin-1, such as Ã¤ for ä",
        0.001,
        "convert the original again, or repair it: iconv -f utf-8 -t latin1 old > new",
    ),
    "replacement": Kind(
        "hold the replacement character U+FFFD", 0.001, "some program could not read the text: convert the original"
    ),
    "control": Kind("hold control characters", 0.001, "normalisation removes them; where do they come from?"),
    "surrogate": Kind("hold half of a surrogate pair", 0.0, "normalisation removes them; write the text as UTF-8"),
    "noncharacter": Kind("hold noncharacters such as U+FFFE", 0.001, "normalisation removes them"),
    "byte-order-mark": Kind(
        "hold a byte order mark inside the text", 0.001, "left over from joined files; normalisation removes it"
    ),
    "zero-width": Kind(
        "hold invisible characters (zero-width space, soft hyphen …)", 0.01, "words that look alike become different"
    ),
    "direction": Kind("hold marks that turn the writing direction", 0.05, "expected only in right-to-left scripts"),
    "long": Kind(f"have a side of more than {LONG:,} characters", 0.001, "documents instead of sentences? split them"),
    "ratio": Kind(
        f"have a side that is more than {RATIO} times longer than the other",
        0.01,
        "such pairs seldom translate each other; --data.max-ratio drops them",
    ),
    "duplicate": Kind("repeat an earlier pair", 0.1, "they count more than the others; `sort -u` removes them"),
    "ambiguous": Kind("have a source that also stands with another target", 1.0, "several translations are no fault"),
    "valid-pair": Kind("of the validation data are in the training data", 0.01, "the score will be too good"),
    "valid-source": Kind(
        "of the validation data have a source that is in the training data", 0.05, "the score may be too good"
    ),
    "test-pair": Kind("of the test data are in the training data", 0.0, "the score will be too good: remove them"),
    "test-source": Kind(
        "of the test data have a source that is in the training data", 0.05, "the score may be too good"
    ),
}

SINGULAR = {"have": "has", "hold": "holds", "repeat": "repeats", "are": "is"}
OVERLAPS = frozenset({"valid-pair", "valid-source", "test-pair", "test-source"})
# With these, training teaches nothing at all if they hold for every pair.
WORTHLESS_IF_ALL = frozenset({"empty-source", "empty-target", "equal-sources", "equal-targets"})
FEWEST_TO_JUDGE = 10  # a toy of three pairs may well have equal targets


@dataclass(frozen=True)
class Place:
    """One pair that has a fault; in two aligned files, pair n is line n of both."""

    corpus: str
    pair: int  # from 1
    text: str  # what it looks like, shortened

    def __str__(self) -> str:
        return f"{self.corpus}, pair {self.pair:,}" + (f": {self.text}" if self.text else "")


@dataclass(frozen=True)
class Fault:
    """One kind of fault: how many pairs have it, and the first of them."""

    kind: str
    severity: Severity
    count: int
    share: float
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        says = KINDS[self.kind].says
        if self.count == 1:
            says = re.sub(r"\b(have|hold|repeat|are)\b", lambda match: SINGULAR[match[0]], says, count=1)
        return f"{self.count:,} pair{'s' * (self.count != 1)} ({percentage(self.share)}) {says}"


@dataclass(frozen=True)
class DataReport:
    """What is remarkable about the texts of some corpora."""

    corpora: tuple[str, ...]
    pairs: int
    source_characters: int
    target_characters: int
    longest_source: int  # in characters
    longest_target: int
    faults: tuple[Fault, ...] = ()

    def of(self, severity: Severity) -> tuple[Fault, ...]:
        """The faults of one severity."""
        return tuple(fault for fault in self.faults if fault.severity == severity)

    def attention(self) -> list[str]:
        """What deserves attention before a training starts, one line each."""
        lines: list[str] = []
        for fault in (*self.of("error"), *self.of("warning")):
            where = f" (first: {fault.places[0].corpus}, pair {fault.places[0].pair:,})" if fault.places else ""
            lines.append(f"{fault.severity}: {fault}{where}; {KINDS[fault.kind].do}")
        return lines

    def lines(self) -> list[str]:
        """All of it for people: the errors first, each fault with its places."""
        lines = [
            f"{self.pairs:,} pairs, {self.source_characters:,} source and {self.target_characters:,} target characters",
            f"longest texts: {self.longest_source:,} and {self.longest_target:,} characters",
        ]
        for severity in SEVERITIES:
            for fault in self.of(severity):
                lines.append(f"{severity}: {fault}")
                lines += [f"    {place}" for place in fault.places]
                if severity != "information":
                    lines.append(f"  {KINDS[fault.kind].do}")
        if not self.faults:
            lines.append("nothing remarkable in the texts")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataReport:
        """The inverse of `to_json`, also after a journey through JSON."""
        faults = tuple(
            Fault(**{**fault, "places": tuple(Place(**place) for place in fault["places"])})
            for fault in values["faults"]
        )
        return cls(**{**values, "corpora": tuple(values["corpora"]), "faults": faults})


def make_fault(kind: str, count: int, total: int, places: tuple[Place, ...] = ()) -> Fault:
    """A fault with the severity that its share among `total` deserves."""
    share = count / total if total else 0.0
    severity: Severity = "information" if share <= KINDS[kind].tolerated else "warning"
    if kind in WORTHLESS_IF_ALL and count == total >= FEWEST_TO_JUDGE:
        severity = "error"
    return Fault(kind, severity, count, share, places)


def percentage(share: float) -> str:
    """A share with three digits that matter: 12.4 %, 0.00345 %."""
    return f"{100 * share:.3g} %"
