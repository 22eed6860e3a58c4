"""Reading files: lines of text, and pairs from two text files, TSV, JSONL or Parquet.

Reading stops at the first fault, or tells each fault to whoever asked for that, leaves the example out and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from saccade.data.reading.text_lines import (
    LONGEST_LINE,
    FileError,
    FileLines,
    Report,
    not_utf8,
    open_bytes,
    refuse,
    unreadable,
)
from saccade.errors import did_you_mean
from saccade.untrusted_files import each_key_once

__all__ = ["FileError", "Pair", "open_bytes", "read_lines", "read_pairs", "unreadable"]

SOURCE_COLUMN = "source"
TARGET_COLUMN = "target"
PARQUET_ROWS = 32  # rows in memory at a time: a small file may hold one long text thousands of times
PARQUET_BYTES = 2**20  # of rows that are turned into texts at once


class Pair(NamedTuple):
    """One example: a text and what it should become."""

    source: str
    target: str


class Columns(NamedTuple):
    """Where source and target stand in a TSV line, from 0, and whether the first line names the columns."""

    source: int
    target: int
    header: bool


def read_lines(path: str | Path, *, faults: Report | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or .gz; only a line feed ends a line, as in `wc -l` and `paste`."""
    return (line for line in FileLines(path, faults or refuse) if line is not None)


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    source_column: str = SOURCE_COLUMN,
    target_column: str = TARGET_COLUMN,
    faults: Report | None = None,
) -> Iterator[Pair]:
    """The pairs of two line-aligned text files, or of one TSV, JSONL or Parquet file."""
    report = faults or refuse
    if target is not None:
        return read_aligned(source, target, report)
    try:
        reader = pair_reader(source)
    except FileError as fault:
        report(fault)
        return iter(())
    return reader(source, source_column, target_column, report)


def pair_reader(path: str | Path) -> Callable[[str | Path, str, str, Report], Iterator[Pair]]:
    """The reader for a file of pairs, by the name's ending or, failing that, by a TAB in the first line."""
    readers = {".tsv": read_tsv, ".jsonl": read_jsonl, ".parquet": read_parquet}
    reader = readers.get(Path(str(path).removesuffix(".gz")).suffix.lower())
    if reader is read_parquet and str(path).endswith(".gz"):
        raise FileError(
            "not-text",
            "is a gzipped Parquet file",
            file=path,
            do="unpack it: Parquet compresses its columns itself",
        )
    if reader:
        return reader
    if "\t" in next(read_lines(path)):
        return read_tsv
    raise FileError(
        "no-target",
        "holds one text a line, and no target is given",
        file=path,
        do="give the target lines with --target FILE, or one file of pairs ending in .tsv, .jsonl or .parquet",
    )


def read_aligned(source: str | Path, target: str | Path, report: Report) -> Iterator[Pair]:
    """Line by line from two text files of equal length."""
    sources, targets = FileLines(source, report), FileLines(target, report)
    for source_line, target_line in zip_longest(sources, targets):
        if source_line is not None and target_line is not None:
            yield Pair(source_line, target_line)
    if sources.whole and targets.whole and sources.count != targets.count:
        report(
            FileError(
                "line-counts",
                f"{source} has {sources.count:,} lines, {target} has {targets.count:,}",
                file=f"{source}, {target}",
                do="line n of one file must translate line n of the other; an empty line counts",
            )
        )


def read_tsv(path: str | Path, source_column: str, target_column: str, report: Report) -> Iterator[Pair]:
    """Pairs from TAB-separated lines; quotes are ordinary characters and blank lines are skipped."""
    columns: Columns | None = None
    for number, line in enumerate(FileLines(path, report), start=1):
        if line is None:
            continue
        fields = line.split("\t")
        if columns is None:
            try:
                columns = find_columns(fields, source_column, target_column, path)
            except FileError as fault:
                report(fault)
                return  # no other line has its columns either
            if columns.header:
                continue
        if not line.strip():
            continue
        needed = max(columns.source, columns.target) + 1
        if len(fields) < needed:
            report(
                FileError(
                    "columns",
                    f"has {len(fields)} column{'s' * (len(fields) > 1)}, but column {needed} is needed",
                    file=path,
                    line=number,
                    do="put one TAB between source and target, and none inside a text",
                )
            )
            continue
        yield Pair(fields[columns.source], fields[columns.target])


def find_columns(first: list[str], source_column: str, target_column: str, path: str | Path) -> Columns:
    """Where the two columns of a TSV file are, from their names or numbers and the fields of the first line."""
    names = [field.strip() for field in first]
    wanted = (source_column, target_column)
    if wanted == (SOURCE_COLUMN, TARGET_COLUMN) and not set(wanted) <= set(names):
        return Columns(source=0, target=1, header=False)
    places: list[int] = []
    for name in wanted:
        if name.isdecimal() and int(name) > 0:
            places.append(int(name) - 1)
        elif name in names:
            places.append(names.index(name))
        else:
            raise FileError(
                "columns",
                f"no column is called '{name}'",
                file=path,
                line=1,
                do=f"{did_you_mean(name, names)}; or give the column's number from 1",
            )
    return Columns(places[0], places[1], header=not all(name.isdecimal() for name in wanted))


def read_jsonl(path: str | Path, source_column: str, target_column: str, report: Report) -> Iterator[Pair]:
    """Pairs from one JSON object a line; blank lines are skipped."""
    example = f'write one object a line: {{"{source_column}": "…", "{target_column}": "…"}}'
    for number, line in enumerate(FileLines(path, report), start=1):
        if line is None or not line.strip():
            continue
        try:
            record = parse_object(line, path, number, example)
            pair = pair_of(record, source_column, target_column, path, number, "line")
        except FileError as fault:
            report(fault)
            continue
        yield pair


def parse_object(line: str, path: str | Path, number: int, example: str) -> dict[str, Any]:
    """The object that a line of JSON holds."""
    try:
        record = json.loads(line, object_pairs_hook=each_key_once)
    except (ValueError, RecursionError) as error:
        raise FileError("not-json", f"is not JSON ({error})", file=path, line=number, do=example) from None
    if not isinstance(record, dict):
        raise FileError("not-json", "is not a JSON object", file=path, line=number, do=example)
    return record


def pair_of(
    record: dict[str, Any], source_column: str, target_column: str, path: str | Path, number: int, unit: str
) -> Pair:
    """The two texts of a record."""
    source = text_of(record, source_column, path, number, unit)
    return Pair(source, text_of(record, target_column, path, number, unit))


def text_of(record: dict[str, Any], column: str, path: str | Path, number: int, unit: str) -> str:
    """The text in one column of a record."""

    def fault(kind: str, what: str, do: str) -> FileError:
        return FileError(kind, what, file=path, line=number, unit=unit, do=do)

    if column not in record:
        raise fault("columns", f"no column is called '{column}'", did_you_mean(column, map(str, record)))
    value = record[column]
    if not isinstance(value, str):
        found = "nothing (null)" if value is None else f"a {type(value).__name__}"
        raise fault("no-text", f"column '{column}' holds {found}, not a text", "put the text in quotes")
    if len(value) > LONGEST_LINE:
        raise fault("too-long", f"column '{column}' has more than {LONGEST_LINE:,} characters", "split the text")
    if not encodable(value):
        raise fault(
            "not-utf8",
            f"column '{column}' holds half of a surrogate pair (\\ud800 to \\udfff alone)",
            "write the character itself in UTF-8, or both halves",
        )
    return value


def encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8; JSON escapes can name code points that cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: str | Path, source_column: str, target_column: str, report: Report) -> Iterator[Pair]:
    """Pairs from two text columns of a Parquet file, some rows in memory at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        do = "install it with: pip install 'saccade[parquet]'"
        report(FileError("unreadable", "Parquet needs the pyarrow package", file=path, do=do))
        return
    columns = [source_column, target_column]
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for column in columns:
                if column not in names:
                    what, do = f"no column is called '{column}'", did_you_mean(column, names)
                    report(FileError("columns", what, file=path, do=do))
                    return
            for batch in file.iter_batches(PARQUET_ROWS, columns=columns):
                for record in records_of(batch):
                    number += 1
                    try:
                        if isinstance(record, UnicodeDecodeError):
                            raise not_utf8(record, path, number, "row")
                        pair = pair_of(record, source_column, target_column, path, number, "row")
                    except FileError as fault:
                        report(fault)
                        continue
                    yield pair
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:  # else it is about what the file holds
            report(unreadable(path, error))
            return
        report(FileError("damaged", f"is not a readable Parquet file ({error})", file=path, do="write it again"))
        return
    if number == 0:
        report(FileError("empty", "is empty", file=path, do="name a file with one example a row"))


def records_of(batch: Any) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """The rows of a record batch, large ones one by one; Parquet does not check that its texts are UTF-8."""
    if batch.nbytes < PARQUET_BYTES:
        try:
            yield from batch.to_pylist()
            return
        except UnicodeDecodeError:
            pass
    for row in range(batch.num_rows):
        try:
            yield from batch.slice(row, 1).to_pylist()
        except UnicodeDecodeError as error:
            yield error
