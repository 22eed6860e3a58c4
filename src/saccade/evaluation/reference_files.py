"""The test set in files: source sentences, and all acceptable references of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.data.reading.pair_files import SOURCE_COLUMN, TARGET_COLUMN, read_lines, read_pairs
from saccade.errors import SaccadeError
from saccade.evaluation.references import keyed_references


class SourcesAndReferences(NamedTuple):
    """The sentences of a test set; without a source file there are no sources."""

    sources: list[str]
    references: list[list[str]]


def read_pairs_to_score(
    path: Path, *, source_column: str = SOURCE_COLUMN, target_column: str = TARGET_COLUMN
) -> SourcesAndReferences:
    """Read a test set from one file of pairs: TSV, CSV, JSONL or Parquet."""
    pairs = list(read_pairs(path, source_column=source_column, target_column=target_column))
    return SourcesAndReferences([pair.source for pair in pairs], [[pair.target] for pair in pairs])


def read_keyed_references(sources: list[str], paths: Sequence[Path]) -> SourcesAndReferences:
    """Read the references of each source from files of `source TAB reference` lines."""
    rows = (row for path in paths for row in read_pairs(path))
    return SourcesAndReferences(sources, keyed_references(sources, rows))


def read_aligned_references(sources: list[str], paths: Sequence[Path]) -> SourcesAndReferences:
    """Read references from text files; line n of each belongs to source n."""
    columns = [list(read_lines(path)) for path in paths]
    expected = len(sources) or len(columns[0])
    for path, column in zip(paths, columns, strict=True):
        if len(column) != expected:
            raise SaccadeError(
                f"has {len(column):,} lines, but {expected:,} are expected",
                where=str(path),
                hint="line n of each reference file must translate line n of the source; empty lines count",
            )
    return SourcesAndReferences(sources, [list(row) for row in zip(*columns, strict=True)])
