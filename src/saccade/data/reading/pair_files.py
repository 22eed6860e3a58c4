"""Reading text lines, and sentence pairs from two aligned text files, TSV, CSV, JSONL or Parquet.

By default the first invalid example raises a FileError. With an `on_error` handler, each error is passed to the
handler, the example is skipped, and reading continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from saccade.arguments import path_of
from saccade.data.reading.table_files import SOURCE_COLUMN, TARGET_COLUMN, Pair, read_csv, read_tsv
from saccade.data.reading.text_lines import (
    MAX_LINE_LENGTH,
    ErrorHandler,
    FileError,
    FileLines,
    not_utf8,
    open_bytes,
    raise_error,
    unreadable,
)
from saccade.errors import did_you_mean
from saccade.untrusted_files import reject_duplicate_keys

__all__ = [
    "SOURCE_COLUMN",
    "TARGET_COLUMN",
    "FileError",
    "Pair",
    "open_bytes",
    "read_lines",
    "read_pairs",
    "unreadable",
]

PARQUET_ROWS = 32  # rows read at a time: dictionary encoding lets a small file repeat a long text thousands of times
PARQUET_BYTES = 2**20  # a record batch up to this size is converted at once


def read_lines(path: str | Path, *, on_error: ErrorHandler | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or .gz; only a line feed ends a line, as in `wc -l` and `paste`."""
    path_of(path, "path")  # a number would be the descriptor of an open file
    return (line for line in FileLines(path, on_error or raise_error) if line is not None)


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    source_column: str = SOURCE_COLUMN,
    target_column: str = TARGET_COLUMN,
    on_error: ErrorHandler | None = None,
) -> Iterator[Pair]:
    """The pairs of two line-aligned text files, or of one TSV, CSV, JSONL or Parquet file."""
    on_error = on_error or raise_error
    path_of(source, "source")
    if target is not None:
        path_of(target, "target")
        return read_aligned(source, target, on_error)
    try:
        reader = pair_reader(source)
    except FileError as error:
        on_error(error)
        return iter(())
    return reader(source, source_column, target_column, on_error)


def pair_reader(path: str | Path) -> Callable[[str | Path, str, str, ErrorHandler], Iterator[Pair]]:
    """The reader of a file of pairs, chosen by the file extension, else by a TAB in the first line."""
    readers = {".tsv": read_tsv, ".csv": read_csv, ".jsonl": read_jsonl, ".parquet": read_parquet}
    reader = readers.get(Path(str(path).removesuffix(".gz")).suffix.lower())
    if reader is read_parquet and str(path).endswith(".gz"):
        raise FileError(
            "not-text",
            "is a gzipped Parquet file",
            file=path,
            hint="unpack it: Parquet already compresses its columns",
        )
    if reader:
        return reader
    if "\t" in next(read_lines(path)):
        return read_tsv
    raise FileError(
        "no-target",
        "has one text per line, and no target is given",
        file=path,
        hint="name the file of target sentences too, or one file of pairs ending in .tsv, .csv, .jsonl or .parquet",
    )


def read_aligned(source: str | Path, target: str | Path, on_error: ErrorHandler) -> Iterator[Pair]:
    """Pairs from two line-aligned text files."""
    sources, targets = FileLines(source, on_error), FileLines(target, on_error)
    for source_line, target_line in zip_longest(sources, targets):
        if source_line is not None and target_line is not None:
            yield Pair(source_line, target_line)
    if sources.complete and targets.complete and sources.count != targets.count:
        on_error(
            FileError(
                "line-counts",
                f"{source} has {sources.count:,} lines, {target} has {targets.count:,}",
                file=f"{source}, {target}",
                hint="line n of one file must translate line n of the other; an empty line counts",
            )
        )


def read_jsonl(path: str | Path, source_column: str, target_column: str, on_error: ErrorHandler) -> Iterator[Pair]:
    """Pairs from one JSON object per line; blank lines are skipped."""
    example = f'write one object per line: {{"{source_column}": "…", "{target_column}": "…"}}'
    for number, line in enumerate(FileLines(path, on_error), start=1):
        if line is None or not line.strip():
            continue
        try:
            record = parse_object(line, path, number, example)
            pair = pair_of(record, source_column, target_column, path, number, "line")
        except FileError as error:
            on_error(error)
            continue
        yield pair


def parse_object(line: str, path: str | Path, number: int, example: str) -> dict[str, Any]:
    """Parse a line that must be a JSON object."""
    try:
        record = json.loads(line, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise FileError("not-json", f"is not JSON ({error})", file=path, line=number, hint=example) from None
    if not isinstance(record, dict):
        raise FileError("not-json", "is not a JSON object", file=path, line=number, hint=example)
    return record


def pair_of(
    record: dict[str, Any], source_column: str, target_column: str, path: str | Path, number: int, unit: str
) -> Pair:
    """The source and target texts of a record."""
    source = text_of(record, source_column, path, number, unit)
    return Pair(source, text_of(record, target_column, path, number, unit))


def text_of(record: dict[str, Any], column: str, path: str | Path, number: int, unit: str) -> str:
    """The text in one column of a record."""

    def error(kind: str, what: str, hint: str) -> FileError:
        return FileError(kind, what, file=path, line=number, unit=unit, hint=hint)

    if column not in record:
        raise error("columns", f"no column is called '{column}'", did_you_mean(column, map(str, record)))
    value = record[column]
    if not isinstance(value, str):
        found = "null" if value is None else f"a {type(value).__name__}"
        raise error("no-text", f"column '{column}' is {found}, not a string", "put the text in quotes")
    if len(value) > MAX_LINE_LENGTH:
        raise error("too-long", f"column '{column}' has more than {MAX_LINE_LENGTH:,} characters", "split the text")
    if not is_encodable(value):
        raise error(
            "not-utf8",
            f"column '{column}' has an unpaired surrogate (\\ud800 to \\udfff)",
            "write the character in UTF-8, or both surrogates",
        )
    return value


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; JSON escapes can produce unpaired surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: str | Path, source_column: str, target_column: str, on_error: ErrorHandler) -> Iterator[Pair]:
    """Pairs from two string columns of a Parquet file, with few rows in memory at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        hint = "install it with: pip install 'saccade[parquet]'"
        on_error(FileError("unreadable", "Parquet needs the pyarrow package", file=path, hint=hint))
        return
    columns = [source_column, target_column]
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for column in columns:
                if column not in names:
                    what, hint = f"no column is called '{column}'", did_you_mean(column, names)
                    on_error(FileError("columns", what, file=path, hint=hint))
                    return
            for batch in file.iter_batches(PARQUET_ROWS, columns=columns):
                for record in records_of(batch):
                    number += 1
                    try:
                        if isinstance(record, UnicodeDecodeError):
                            raise not_utf8(record, path, number, "row")
                        pair = pair_of(record, source_column, target_column, path, number, "row")
                    except FileError as error:
                        on_error(error)
                        continue
                    yield pair
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:  # a column name may not be UTF-8
        if isinstance(error, OSError) and error.errno is not None:  # without errno, the content is invalid
            on_error(unreadable(path, error))
            return
        on_error(FileError("damaged", f"is not a readable Parquet file ({error})", file=path, hint="write it again"))
        return
    if number == 0:
        on_error(FileError("empty", "is empty", file=path, hint="give a file with one example per row"))


def records_of(batch: Any) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Yield the rows of a record batch, one by one if it is large or not UTF-8, which Parquet does not check."""
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
