"""Sentence pairs from two columns of a table in a text file: TSV, without quotes, or CSV, with quotes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from saccade.data.reading.text_lines import MAX_LINE_LENGTH, ErrorHandler, FileError, FileLines
from saccade.errors import did_you_mean

SOURCE_COLUMN = "source"
TARGET_COLUMN = "target"
DELIMITERS = ",;\t"  # spreadsheets write a semicolon where the comma is the decimal sign


class Pair(NamedTuple):
    """A source text and its target text."""

    source: str
    target: str


class Row(NamedTuple):
    """The fields of a table row, and the number of its last line in the file."""

    line: int
    fields: list[str]


class Columns(NamedTuple):
    """Indices of the source and target columns, and whether the first row is a header."""

    source: int
    target: int
    header: bool


def read_tsv(path: str | Path, source_column: str, target_column: str, on_error: ErrorHandler) -> Iterator[Pair]:
    """Pairs from TAB-separated lines; quotes have no special meaning, blank lines are skipped."""
    rows = (
        Row(number, line.split("\t") if line.strip() else [])
        for number, line in enumerate(FileLines(path, on_error), start=1)
        if line is not None
    )
    hint = "put one TAB between source and target, and none inside a text"
    return pairs_of(rows, path, (source_column, target_column), on_error, hint)


def read_csv(path: str | Path, source_column: str, target_column: str, on_error: ErrorHandler) -> Iterator[Pair]:
    """Pairs from the rows of a CSV file; a quoted field may contain delimiters, line breaks and doubled quotes."""
    hint = "put a text with a comma, a quote or a line break in quotes, and double the quotes inside"
    return pairs_of(csv_rows(path, on_error, hint), path, (source_column, target_column), on_error, hint)


def csv_rows(path: str | Path, on_error: ErrorHandler, hint: str) -> Iterator[Row]:
    """The rows of a CSV file; the first line decides the delimiter."""
    lines = (line for line in FileLines(path, on_error) if line is not None)
    first = next(lines, None)
    if first is None:
        return
    before = csv.field_size_limit(MAX_LINE_LENGTH)
    try:
        row_lines = RowLines(chain([first], lines))
        reader = csv.reader(row_lines, delimiter=delimiter_of(first), strict=True)
        while True:
            row_lines.size = 0
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                on_error(FileError("not-csv", f"is not CSV ({error})", file=path, line=reader.line_num, hint=hint))
                continue
            yield Row(reader.line_num, fields)
    finally:
        csv.field_size_limit(before)


class RowLines:
    """Lines for a CSV reader, which joins lines inside quotes; a row of more than MAX_LINE_LENGTH is an error."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines = lines
        self.size = 0  # characters of the row so far

    def __iter__(self) -> RowLines:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.size += len(line) + 1
        if self.size > MAX_LINE_LENGTH:
            raise csv.Error(f"a row has more than {MAX_LINE_LENGTH:,} characters: is a quote not closed?")
        return f"{line}\n"


def delimiter_of(line: str) -> str:
    """The most frequent delimiter outside quotes; a comma if there is none."""
    outside = "".join(line.split('"')[::2])
    return max(DELIMITERS, key=outside.count)


def pairs_of(
    rows: Iterable[Row], path: str | Path, names: tuple[str, str], on_error: ErrorHandler, hint: str
) -> Iterator[Pair]:
    """The pairs in two columns; blank rows are skipped."""
    columns: Columns | None = None
    for number, fields in rows:
        if columns is None:
            try:
                columns = find_columns(fields, *names, path)
            except FileError as error:
                on_error(error)
                return  # the columns are missing in every row
            if columns.header:
                continue
        if not fields:
            continue
        needed = max(columns.source, columns.target) + 1
        if len(fields) < needed:
            what = f"has {len(fields)} column{'s' * (len(fields) > 1)}, but column {needed} is needed"
            on_error(FileError("columns", what, file=path, line=number, hint=hint))
            continue
        yield Pair(fields[columns.source], fields[columns.target])


def find_columns(first: list[str], source_column: str, target_column: str, path: str | Path) -> Columns:
    """Find the two columns by their names or numbers and the fields of the first row."""
    names = [field.strip() for field in first]
    wanted = (source_column, target_column)
    if wanted == (SOURCE_COLUMN, TARGET_COLUMN) and not set(wanted) <= set(names):
        return Columns(source=0, target=1, header=False)
    indices: list[int] = []
    for name in wanted:
        if name.isdecimal() and int(name) > 0:
            indices.append(int(name) - 1)
        elif name in names:
            indices.append(names.index(name))
        else:
            raise FileError(
                "columns",
                f"no column is called '{name}'",
                file=path,
                line=1,
                hint=f"{did_you_mean(name, names)}; or give the column's number from 1",
            )
    return Columns(indices[0], indices[1], header=not all(name.isdecimal() for name in wanted))
