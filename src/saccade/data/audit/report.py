"""The data report: the issues found in the texts, with counts, examples and severities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "information"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "information")

MAX_CHARACTERS = 5_000
"""A text with more characters is reported as very long."""
MAX_LENGTH_RATIO = 9
"""A larger length ratio of source and target is reported."""
MIN_RATIO_CHARACTERS = 20
"""The length ratio is not checked if neither text has more characters."""


class DataIssueKind(NamedTuple):
    """A kind of issue; up to the tolerated share of pairs it is information, above it a warning."""

    description: str  # continues "12 pairs (3.4 %) "
    tolerated: float
    hint: str


# A tolerated share of 1 means no warning. A corpus of millions of pairs has a few of every issue.
KINDS: dict[str, DataIssueKind] = {
    "empty-source": DataIssueKind("have an empty source", 0.01, "such pairs are dropped; are the files aligned?"),
    "empty-target": DataIssueKind("have an empty target", 0.01, "such pairs are dropped; are the files aligned?"),
    "equal-sources": DataIssueKind("have the same source", 0.0, "a wrong file, or a wrong --data.source-column"),
    "equal-targets": DataIssueKind("have the same target", 0.0, "a wrong file, or a wrong --data.target-column"),
    "identical": DataIssueKind("have the same text on both sides", 0.1, "untranslated lines, or a wrong file"),
    "misread": DataIssueKind(
        "have text that looks like UTF-8 read as Latin-1, such as Ã¤ for ä",
        0.001,
        "convert the original again, or repair it: iconv -f utf-8 -t latin1 old > new",
    ),
    "replacement": DataIssueKind(
        "hold the replacement character U+FFFD", 0.001, "the text was decoded wrongly: convert the original"
    ),
    "control": DataIssueKind("hold control characters", 0.001, "normalization removes them; where do they come from?"),
    "surrogate": DataIssueKind(
        "hold an unpaired surrogate", 0.0, "normalization removes them; write the text as UTF-8"
    ),
    "noncharacter": DataIssueKind("hold noncharacters such as U+FFFE", 0.001, "normalization removes them"),
    "byte-order-mark": DataIssueKind(
        "hold a byte order mark inside the text", 0.001, "from concatenated files; normalization removes it"
    ),
    "zero-width": DataIssueKind(
        "hold invisible characters (zero-width space, soft hyphen …)",
        0.01,
        "words that look equal have different tokens",
    ),
    "direction": DataIssueKind("hold bidirectional control characters", 0.05, "expected only in right-to-left scripts"),
    "long": DataIssueKind(
        f"have a side of more than {MAX_CHARACTERS:,} characters", 0.001, "documents instead of sentences? split them"
    ),
    "ratio": DataIssueKind(
        f"have a side that is more than {MAX_LENGTH_RATIO} times longer than the other",
        0.01,
        "such pairs are rarely translations; --data.max-ratio drops them",
    ),
    "duplicate": DataIssueKind("repeat an earlier pair", 0.1, "they are trained on more often; `sort -u` removes them"),
    "ambiguous": DataIssueKind(
        "have a source that also occurs with another target", 1.0, "several translations are normal"
    ),
    "valid-pair": DataIssueKind("of the validation data are in the training data", 0.01, "the score will be too good"),
    "valid-source": DataIssueKind(
        "of the validation data have a source that is in the training data", 0.05, "the score may be too good"
    ),
    "test-pair": DataIssueKind(
        "of the test data are in the training data", 0.0, "the score will be too good: remove them"
    ),
    "test-source": DataIssueKind(
        "of the test data have a source that is in the training data", 0.05, "the score may be too good"
    ),
}

SINGULAR = {"have": "has", "hold": "holds", "repeat": "repeats", "are": "is"}
OVERLAPS = frozenset({"valid-pair", "valid-source", "test-pair", "test-source"})
# If every pair has one of these issues, the data is useless for training.
ERROR_IF_ALL = frozenset({"empty-source", "empty-target", "equal-sources", "equal-targets"})
MIN_PAIRS_FOR_ERROR = 10  # in three pairs, equal targets may be a coincidence


@dataclass(frozen=True)
class DataIssueExample:
    """A pair with an issue; in two aligned files, pair n is line n of both."""

    corpus: str
    pair: int  # from 1
    text: str  # an excerpt

    def __str__(self) -> str:
        return f"{self.corpus}, pair {self.pair:,}" + (f": {self.text}" if self.text else "")


@dataclass(frozen=True)
class DataIssue:
    """One kind of issue in the data: how many pairs have it, and the first of them."""

    kind: str
    severity: Severity
    count: int
    share: float
    examples: tuple[DataIssueExample, ...] = ()  # named as in report.json

    def __str__(self) -> str:
        description = KINDS[self.kind].description
        if self.count == 1:
            description = re.sub(r"\b(have|hold|repeat|are)\b", lambda match: SINGULAR[match[0]], description, count=1)
        return f"{self.count:,} pair{'s' * (self.count != 1)} ({percentage(self.share)}) {description}"


@dataclass(frozen=True)
class DataReport:
    """Sizes of the corpora and the issues found in their texts."""

    corpora: tuple[str, ...]
    pairs: int
    source_characters: int
    target_characters: int
    longest_source: int  # in characters
    longest_target: int
    issues: tuple[DataIssue, ...] = ()

    def issues_of(self, severity: Severity) -> tuple[DataIssue, ...]:
        """The issues of one severity."""
        return tuple(issue for issue in self.issues if issue.severity == severity)

    def lines(self) -> list[str]:
        """The report as text: errors first, each issue with its examples."""
        lines = [
            f"{self.pairs:,} pairs, {self.source_characters:,} source and {self.target_characters:,} target characters",
            f"longest texts: {self.longest_source:,} and {self.longest_target:,} characters",
        ]
        for severity in SEVERITIES:
            for issue in self.issues_of(severity):
                lines.append(f"{severity}: {issue}")
                lines += [f"    {example}" for example in issue.examples]
                if severity != "information":
                    lines.append(f"  {KINDS[issue.kind].hint}")
        if not self.issues:
            lines.append("no issues found in the texts")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataReport:
        """Return the report that `to_json` serialized."""
        issues = tuple(
            DataIssue(**{**issue, "examples": tuple(DataIssueExample(**example) for example in issue["examples"])})
            for issue in values["issues"]
        )
        return cls(**{**values, "corpora": tuple(values["corpora"]), "issues": issues})


def make_issue(kind: str, count: int, total: int, examples: tuple[DataIssueExample, ...] = ()) -> DataIssue:
    """Return an issue that `count` of `total` pairs have; the share decides the severity."""
    share = count / total if total else 0.0
    severity: Severity = "information" if share <= KINDS[kind].tolerated else "warning"
    if kind in ERROR_IF_ALL and count == total >= MIN_PAIRS_FOR_ERROR:
        severity = "error"
    return DataIssue(kind, severity, count, share, examples)


def percentage(share: float) -> str:
    """Format a share in percent with three significant digits: 12.4 %, 0.00345 %."""
    return f"{100 * share:.3g} %"
