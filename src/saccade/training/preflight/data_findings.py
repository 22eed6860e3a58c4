"""Findings about the data of a run; `saccade check` lists them, and `saccade train` warns of the same ones."""

from __future__ import annotations

from saccade.data.audit.report import KINDS, OVERLAPS, DataReport, percentage
from saccade.data.cache.corpus_statistics import CorpusStatistics
from saccade.data.config import SENTENCEPIECE
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.training.preflight.inspection_report import Finding
from saccade.training.runs.data import RunData

MAX_UNKNOWN = 0.01  # fraction of unknown tokens without a warning
MAX_DROPPED = 0.1  # fraction of dropped pairs without a warning


def run_findings(data: RunData) -> list[Finding]:
    """Return all findings about the data of a run, from what its token cache has stored."""
    return [
        *text_findings("training", data.report),
        *text_findings("validation", data.valid_report),
        *token_findings(data),
    ]


def text_findings(use: str, report: DataReport) -> list[Finding]:
    """Return the findings about the texts of the training, validation or test data."""
    findings: list[Finding] = []
    for issue in report.issues:
        advice = None if issue.severity == "information" else KINDS[issue.kind].hint
        about = "" if issue.kind in OVERLAPS else f"{use} data: "
        occurrences = tuple(str(example) for example in issue.examples)
        findings.append(Finding(issue.severity, f"{about}{issue}", occurrences, advice))
    return findings


def token_findings(data: RunData) -> list[Finding]:
    """Return warnings of unknown tokens and of dropped pairs."""
    findings = unknown_tokens("training", data.train.statistics, data.tokenizers)
    if data.valid is not None:
        findings += unknown_tokens("validation", data.valid.statistics, data.tokenizers)
    dropped = data.train.dropped
    if dropped.seen and dropped.total / dropped.seen > MAX_DROPPED:
        what = f"{percentage(dropped.total / dropped.seen)} of the training pairs are dropped"
        findings.append(Finding("warning", what, hint=f"{dropped}; see --data.max-length, --data.max-ratio"))
    return findings


def unknown_tokens(use: str, statistics: CorpusStatistics, tokenizers: Tokenizers) -> list[Finding]:
    """Return a warning for each side of a corpus with many unknown tokens."""
    findings: list[Finding] = []
    for side, tokenizer, unknown, tokens in (  # tokens without the end symbols
        (
            "source",
            tokenizers.source,
            statistics.unknown_source,
            statistics.source_tokens - statistics.pairs,
        ),  # without end symbols
        ("target", tokenizers.target, statistics.unknown_target, statistics.target_tokens - statistics.pairs),
    ):
        if tokens and unknown / tokens > MAX_UNKNOWN:
            what = f"{percentage(unknown / tokens)} of the tokens of the {use} {side} are unknown"
            if tokenizer.kind == SENTENCEPIECE:
                hint = "train the SentencePiece model with a larger character coverage, or with byte_fallback"
            else:
                hint = "raise --data.vocabulary, lower --data.min-frequency, or take --data.tokenizer byte"
            findings.append(Finding("warning", what, hint=hint))
    return findings
