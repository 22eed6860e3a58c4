from __future__ import annotations

import pytest

from saccade.data.audit.report import KINDS, DataIssue, DataIssueExample, DataReport, make_issue, percentage

REPORT = DataReport(
    corpora=("a.en",),
    pairs=1000,
    source_characters=12_345,
    target_characters=23_456,
    longest_source=99,
    longest_target=101,
    issues=(
        make_issue("empty-source", 1000, 1000),
        make_issue(
            "identical", 200, 1000, (DataIssueExample("a.en", 17, "'same'"), DataIssueExample("a.en", 1234, "'more'"))
        ),
        make_issue("control", 1, 1000, (DataIssueExample("a.en", 3, ""),)),
    ),
)


def test_lines() -> None:
    assert REPORT.lines() == [
        "1,000 pairs, 12,345 source and 23,456 target characters",
        "longest texts: 99 and 101 characters",
        "error: 1,000 pairs (100 %) have an empty source",
        "  such pairs are dropped; are the files aligned?",
        "warning: 200 pairs (20 %) have the same text on both sides",
        "    a.en, pair 17: 'same'",
        "    a.en, pair 1,234: 'more'",
        "  untranslated lines, or a wrong file",
        "information: 1 pair (0.1 %) holds control characters",
        "    a.en, pair 3",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_singular_and_plural(kind: str) -> None:
    one, many = (str(DataIssue(kind, "warning", count, 0.5)) for count in (1, 2))
    assert one.startswith("1 pair (50 %) ")
    assert many.startswith("2 pairs (50 %) ")
    assert one.split(") ")[1] != many.split(") ")[1]
    assert KINDS[kind].hint


@pytest.mark.parametrize("kind", KINDS)
def test_severity_changes_at_the_tolerated_share(kind: str) -> None:
    tolerated = round(KINDS[kind].tolerated * 10_000)
    assert make_issue(kind, tolerated, 10_000).severity == "information"
    if tolerated < 10_000:
        assert make_issue(kind, tolerated + 1, 10_000).severity == "warning"


def test_percentages() -> None:
    assert [percentage(share) for share in (0, 1, 0.1234, 0.00001234)] == ["0 %", "100 %", "12.3 %", "0.00123 %"]
