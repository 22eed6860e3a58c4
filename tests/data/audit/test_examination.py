from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from saccade.data.audit.examination import Examination, Findings, examine_chunk, keys_of
from saccade.data.audit.report import KINDS, DataIssue, DataReport
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair

Texts = st.text(st.sampled_from("ab ä\x00\ufeff\u200b\ufffdÃ¤\n\u00a0ﬁ"), max_size=30) | st.text(max_size=10)
Pairs = st.lists(st.builds(Pair, Texts, Texts), max_size=30)


def examined(
    pairs: list[Pair], chunk: int = 10, valid: list[Pair] | None = None, test: list[Pair] | None = None
) -> DataReport:
    examination = Examination(["train"], valid or [], test=test or [])
    for start in range(0, len(pairs), chunk):
        findings = examine_chunk(pairs[start : start + chunk], start + 1)
        examination.add(0, Findings.from_bytes(findings.to_bytes()))
    return examination.finish()


def only(report: DataReport) -> DataIssue:
    (issue,) = report.issues
    return issue


GOOD = [Pair(f"number {number}", f"Nummer {number}") for number in range(100)]


def test_good_data_has_no_faults() -> None:
    report = examined(GOOD)
    assert report.issues == ()
    assert (report.pairs, report.longest_source, report.longest_target) == (100, 9, 9)
    assert report.source_characters == sum(len(pair.source) for pair in GOOD)
    assert report.lines()[-1] == "no issues found in the texts"
    assert not report.issues_of("error")
    assert not report.issues_of("warning")


@pytest.mark.parametrize(
    ("kind", "pair", "text"),
    [
        ("empty-source", Pair(" \u00a0\x00", "x"), None),
        ("empty-target", Pair("x", ""), ""),
        ("identical", Pair(" the  same ", "the same"), "' the  same '"),
        ("misread", Pair("gut", "schÃ¶n"), "target 'schÃ¶n'"),
        ("replacement", Pair("f\ufffdnf", "x"), "U+FFFD in the source 'f\ufffdnf'"),
        ("control", Pair("a\x07b", "x"), r"U+0007 in the source 'a\x07b'"),
        ("surrogate", Pair("a\ud800b", "x"), r"U+D800 in the source 'a\ud800b'"),
        ("noncharacter", Pair("x", "a\ufdd0b"), r"U+FDD0 in the target 'a\ufdd0b'"),
        ("byte-order-mark", Pair("\ufeffab", "x"), r"U+FEFF in the source '\ufeffab'"),
        ("zero-width", Pair("a\u200bb", "x"), r"U+200B in the source 'a\u200bb'"),
        ("direction", Pair("a\u202eb", "x"), r"U+202E in the source 'a\u202eb'"),
        ("long", Pair("long " * 1001, "lang " * 1001), f"source {('long ' * 12)!r} …"),
        ("ratio", Pair("x", "much longer than the other"), "target 'much longer than the other'"),
        ("duplicate", GOOD[3], "repeats pair 4"),
        ("ambiguous", Pair(GOOD[3].source, "different"), "has the source of pair 4"),
    ],
)
def test_each_kind_is_found_with_an_example(kind: str, pair: Pair, text: str | None) -> None:
    report = examined([*GOOD, pair])
    issues = {issue.kind: issue for issue in report.issues}
    if text is None:  # an empty text made of control characters has both issues
        assert set(issues) == {"empty-source", "control"}
    else:
        assert set(issues) == {kind}
        assert issues[kind].examples[0].text == text
    assert issues[kind].examples[0].pair == 101
    assert issues[kind].count == (2 if kind == "ambiguous" else 1)


def test_every_kind_is_tested() -> None:
    mark = next(mark for mark in test_each_kind_is_found_with_an_example.pytestmark if mark.name == "parametrize")
    others = {"equal-sources", "equal-targets", "valid-pair", "valid-source", "test-pair", "test-source"}
    assert {row[0] for row in mark.args[1]} | others == set(KINDS)


@pytest.mark.parametrize(
    ("side", "kind"), [("source", "equal-sources"), ("target", "equal-targets"), ("source", "empty-source")]
)
def test_useless_data_is_an_error(side: str, kind: str) -> None:
    text = "" if kind == "empty-source" else "always the same"
    report = examined([pair._replace(**{side: text}) for pair in GOOD])
    assert [issue.kind for issue in report.issues_of("error")] == [kind]
    assert report.issues_of("error")[0].count == 100


def test_few_pairs_are_not_an_error() -> None:
    assert not examined([Pair("a", "x"), Pair("b", "x")]).issues_of("error")
    assert examined([]).issues == ()


@pytest.mark.parametrize(("count", "severity"), [(10, "information"), (12, "warning")])
def test_severity_depends_on_the_share(count: int, severity: str) -> None:
    same = [Pair(f"same {number}", f"same {number}") for number in range(count)]
    issue = only(examined([*GOOD[: 100 - count], *same]))
    assert (issue.kind, issue.count, issue.share, issue.severity) == ("identical", count, count / 100, severity)
    assert [example.pair for example in issue.examples] == list(range(101 - count, 106 - count))


def test_overlap_with_held_out_data() -> None:
    valid = [GOOD[7], Pair(" number\u00a08 ", "anders"), Pair("new", "neu"), Pair("", ""), GOOD[7]]
    report = examined([*GOOD, Pair("", "")], valid=valid, test=[GOOD[50]])
    issues = {issue.kind: issue for issue in report.issues}
    assert set(issues) == {"valid-pair", "valid-source", "test-pair", "test-source", "empty-source", "empty-target"}
    assert (issues["valid-pair"].count, issues["valid-pair"].share) == (2, 2 / 5)
    assert issues["valid-source"].count == 3
    assert [(example.pair, example.text) for example in issues["valid-source"].examples] == [
        (8, "'number 7'"),
        (9, r"' number\xa08 '"),
    ]
    assert [example.pair for example in issues["test-pair"].examples] == [51]
    assert issues["test-pair"].severity == "warning"


def test_examples_of_several_corpora() -> None:
    examination = Examination(["first", "second"])
    examination.add(1, examine_chunk([Pair("", "x"), GOOD[0]], 1))
    examination.add(0, examine_chunk([GOOD[0], Pair("", "x")], 1))
    issues = {issue.kind: issue for issue in examination.finish().issues}
    assert [str(example) for example in issues["empty-source"].examples] == ["first, pair 2", "second, pair 1"]
    assert [str(example) for example in issues["duplicate"].examples] == ["second, pair 2: repeats pair 1 of first"]


@hypothesis_settings(deadline=None)
@given(pairs=Pairs, valid=Pairs, chunk=st.integers(1, 7))
def test_report_does_not_depend_on_chunk_size_or_order(pairs: list[Pair], valid: list[Pair], chunk: int) -> None:
    expected = examined(pairs, len(pairs) + 1, valid)
    examination = Examination(["train"], valid)
    for start in reversed(range(0, len(pairs), chunk)):
        examination.add(0, examine_chunk(pairs[start : start + chunk], start + 1))
    assert examination.finish() == expected
    assert DataReport.from_json(json.loads(json.dumps(expected.to_json()))) == expected


@given(pairs=Pairs, first=st.integers(1, 10**9))
def test_findings_round_trip(pairs: list[Pair], first: int) -> None:
    findings = examine_chunk(pairs, first)
    again = Findings.from_bytes(findings.to_bytes())
    assert again.to_bytes() == findings.to_bytes()
    assert np.array_equal(again.pair_keys, findings.pair_keys)
    assert (len(again), again.issues) == (len(pairs), findings.issues)


@given(pairs=Pairs)
def test_keys_are_hashes_of_normalized_texts(pairs: list[Pair]) -> None:
    findings = examine_chunk(pairs, 1)
    assert np.array_equal(findings.source_keys, keys_of(normalize(pair.source, "nfkc") for pair in pairs))
    normal = [tuple(normalize(text, "nfkc") for text in pair) for pair in pairs]
    assert len(set(findings.pair_keys.tolist())) == len(set(normal))


def test_torch_is_not_imported() -> None:
    program = (
        "import sys, saccade.data.audit.examination, saccade.data.reading.pair_files; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
