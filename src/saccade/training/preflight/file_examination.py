"""Examination of all files of a run: every line is read, every invalid line and suspicious text is reported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from saccade.data.audit.examination import Examination, Findings
from saccade.data.audit.report import DataReport
from saccade.data.chunk_jobs import ExamineJob, map_chunks
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import FileError, Pair, read_pairs
from saccade.data.reading.pair_stream import Chunk, chunked
from saccade.training.preflight.data_findings import text_findings
from saccade.training.preflight.inspection_report import Finding, Input
from saccade.training.runs.data import ProgressListener

SHOWN_ERRORS = 5  # of one kind per file


@dataclass(frozen=True)
class ExaminedFiles:
    """Files of a run, and what was found in them."""

    inputs: list[Input] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    reports: dict[str, DataReport] = field(default_factory=dict)

    @property
    def has_errors(self) -> bool:
        """Whether there is an error."""
        return any(finding.severity == "error" for finding in self.findings)

    def add(self, use: str, report: DataReport, errors: FileErrors) -> None:
        """Add a data report, and findings on the errors of files and texts."""
        self.reports[use] = report
        self.findings.extend(errors.findings())
        if errors and report.issues:
            self.findings.append(Finding("information", f"{use} data: pairs are counted without the invalid lines"))
        self.findings.extend(text_findings(use, report))


def examine_files(
    data: DataConfig, listener: ProgressListener, *, test_source: str | None = None, test_target: str | None = None
) -> ExaminedFiles:
    """Read all files of a run to the end and examine their texts."""
    found = ExaminedFiles()
    valid = examine_held_out(found, data, "validation", data.valid_source, data.valid_target)
    test = examine_held_out(found, data, "test", test_source, test_target)
    examination = Examination(data.source, valid, test=test)
    pairs = [0] * len(data.source)
    errors = FileErrors()
    targets = data.target or (None,) * len(data.source)
    chunks = read_chunks(data, list(zip(data.source, targets, strict=True)), errors)
    with closing(map_chunks(chunks, ExamineJob(keys=False), data.workers)) as answers:
        for chunk, answer in answers:
            examination.add(chunk.corpus, Findings.from_bytes(answer.arrays["findings"].tobytes()))
            pairs[chunk.corpus] += len(chunk.pairs)
            listener.progress("examining", sum(pairs), None)
    listener.progress("examining", sum(pairs), sum(pairs))
    found.inputs[:0] = [
        Input("training", source, target, count)
        for source, target, count in zip(data.source, targets, pairs, strict=True)
    ]
    found.add("training", examination.finish(), errors)
    if not sum(pairs) and not errors:
        what = f"{', '.join(data.source)}: contains no pairs"
        found.findings.append(Finding("error", what, hint="name files with pairs"))
    return found


def examine_held_out(
    found: ExaminedFiles, data: DataConfig, use: str, source: str | None, target: str | None
) -> list[Pair]:
    """Examine validation or test files and return their pairs."""
    if source is None:
        return []
    errors = FileErrors()
    name = source if target is None else f"{source}, {target}"
    examination = Examination([name])
    pairs: list[Pair] = []
    for chunk in read_chunks(data, [(source, target)], errors):
        answer = ExamineJob(keys=False).run(chunk)
        examination.add(0, Findings.from_bytes(answer.arrays["findings"].tobytes()))
        pairs += chunk.pairs
    found.inputs.append(Input(use, source, target, len(pairs)))
    found.add(use, examination.finish(), errors)
    return pairs


def read_chunks(data: DataConfig, corpora: Sequence[tuple[str, str | None]], errors: FileErrors) -> Iterator[Chunk]:
    """Yield all readable pairs, corpus by corpus; record the errors of the others."""
    columns = {"source_column": data.source_column, "target_column": data.target_column}
    for corpus, (source, target) in enumerate(corpora):
        special = [path for path in (source, target) if path is not None and is_special(path)]
        for path in special:
            errors.add(FileError("unreadable", "not a regular file", file=path, hint="write it to a file first"))
        if special:
            continue  # a pipe may never end, and cannot be read twice
        first = 1
        for pairs in chunked(read_pairs(source, target, **columns, on_error=errors.add)):
            yield Chunk(corpus, first, pairs)
            first += len(pairs)


class FileErrors:
    """Errors in files: all are counted, the first of each kind in each file are kept."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._kept: dict[tuple[str, str], list[FileError]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, error: FileError) -> None:
        """Record an error."""
        key = error.file, error.kind
        self._counts[key] = self._counts.get(key, 0) + 1
        kept = self._kept.setdefault(key, [])
        if len(kept) < SHOWN_ERRORS:
            kept.append(error)

    def findings(self) -> list[Finding]:
        """Return one finding for each kind of error in each file."""
        found: list[Finding] = []
        for key, (first, *others) in self._kept.items():
            occurrences = [f"{other.where}: {other.what}" for other in others]
            more = self._counts[key] - 1 - len(others)
            if more:
                occurrences.append(f"and {more:,} more of this kind in this file")
            found.append(Finding("error", f"{first.where}: {first.what}", tuple(occurrences), first.hint))
        return found


def is_special(path: str) -> bool:
    """Return whether a path is a pipe, a device or another special file."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
