"""Reading files: lines of text, and pairs from two text files, TSV, JSONL or Parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

from saccade.errors import SaccadeError, did_you_mean

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SOURCE_COLUMN = "source"
TARGET_COLUMN = "target"


class Pair(NamedTuple):
    """One example: a text and what it should become."""

    source: str
    target: str


class Columns(NamedTuple):
    """Where source and target stand in a TSV line, from 0, and whether the first line names the columns."""

    source: int
    target: int
    header: bool


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or .gz; only a line feed ends a line, as in `wc -l` and `paste`."""
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    raw = raw.removeprefix(BYTE_ORDER_MARK)
                yield raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SaccadeError(
            f"byte {error.start + 1} of the line is not UTF-8 (0x{error.object[error.start]:02x})",
            where=f"{path}, line {number}",
            do="convert the file, for example: iconv -f latin1 -t utf-8 old > new",
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SaccadeError(
            f"is damaged or cut off after line {number} ({error})",
            where=str(path),
            do="copy or download the file again; `gzip -t` tests it",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if number == 0:
        raise SaccadeError("is empty", where=str(path), do="name a file with one example a line")


def open_bytes(path: str | Path) -> IO[bytes] | gzip.GzipFile:
    """A file opened for reading, unpacked on the way if its name ends in .gz."""
    if str(path).endswith(".gz"):
        return gzip.open(path, "rb")
    return open(path, "rb")


def unreadable(path: str | Path, error: OSError) -> SaccadeError:
    """What to tell when the system refuses a file."""
    if isinstance(error, FileNotFoundError):
        return SaccadeError("no such file", where=str(path), do="check the path; it is relative to where you run this")
    if isinstance(error, IsADirectoryError):
        return SaccadeError("is a directory", where=str(path), do="name a file in it")
    return SaccadeError(
        f"cannot be read: {error.strerror or error}", where=str(path), do="check the file's permissions"
    )


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    source_column: str = SOURCE_COLUMN,
    target_column: str = TARGET_COLUMN,
) -> Iterator[Pair]:
    """The pairs of two line-aligned text files, or of one TSV, JSONL or Parquet file."""
    if target is not None:
        return read_aligned(source, target)
    return pair_reader(source)(source, source_column, target_column)


def pair_reader(path: str | Path) -> Callable[[str | Path, str, str], Iterator[Pair]]:
    """The reader for a file of pairs, by the name's ending or, failing that, by a TAB in the first line."""
    readers = {".tsv": read_tsv, ".jsonl": read_jsonl, ".parquet": read_parquet}
    reader = readers.get(Path(str(path).removesuffix(".gz")).suffix.lower())
    if reader is read_parquet and str(path).endswith(".gz"):
        raise SaccadeError(
            "is a gzipped Parquet file", where=str(path), do="unpack it: Parquet compresses its columns itself"
        )
    if reader:
        return reader
    if "\t" in next(read_lines(path)):
        return read_tsv
    raise SaccadeError(
        "holds one text a line, and no target is given",
        where=str(path),
        do="give the target lines with --target FILE, or one file of pairs ending in .tsv, .jsonl or .parquet",
    )


def read_aligned(source: str | Path, target: str | Path) -> Iterator[Pair]:
    """Line by line from two text files of equal length."""
    sources = targets = 0
    for source_line, target_line in zip_longest(read_lines(source), read_lines(target)):
        sources += source_line is not None
        targets += target_line is not None
        if source_line is not None and target_line is not None:
            yield Pair(source_line, target_line)
    if sources != targets:
        raise SaccadeError(
            f"{source} has {sources:,} lines, {target} has {targets:,}",
            where=f"{source}, {target}",
            do="line n of one file must translate line n of the other; an empty line counts",
        )


def read_tsv(path: str | Path, source_column: str, target_column: str) -> Iterator[Pair]:
    """Pairs from TAB-separated lines; quotes are ordinary characters and blank lines are skipped."""
    columns: Columns | None = None
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if columns is None:
            columns = find_columns(fields, source_column, target_column, path)
            if columns.header:
                continue
        if not line.strip():
            continue
        needed = max(columns.source, columns.target) + 1
        if len(fields) < needed:
            raise SaccadeError(
                f"has {len(fields)} column{'s' * (len(fields) > 1)}, but column {needed} is needed",
                where=f"{path}, line {number}",
                do="put one TAB between source and target, and none inside a text",
            )
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
            raise SaccadeError(
                f"no column is called '{name}'",
                where=f"{path}, line 1",
                do=f"{did_you_mean(name, names)}; or give the column's number from 1",
            )
    return Columns(places[0], places[1], header=not all(name.isdecimal() for name in wanted))


def read_jsonl(path: str | Path, source_column: str, target_column: str) -> Iterator[Pair]:
    """Pairs from one JSON object a line; blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        example = f'write one object a line: {{"{source_column}": "…", "{target_column}": "…"}}'
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SaccadeError(f"is not JSON ({error})", where=where, do=example) from None
        if not isinstance(record, dict):
            raise SaccadeError("is not a JSON object", where=where, do=example)
        yield Pair(text_of(record, source_column, where), text_of(record, target_column, where))


def text_of(record: dict[str, Any], column: str, where: str) -> str:
    """The text in one column of a record."""
    if column not in record:
        raise SaccadeError(f"no column is called '{column}'", where=where, do=did_you_mean(column, map(str, record)))
    value = record[column]
    if not isinstance(value, str):
        found = "nothing (null)" if value is None else f"a {type(value).__name__}"
        raise SaccadeError(f"column '{column}' holds {found}, not a text", where=where, do="put the text in quotes")
    if not encodable(value):
        raise SaccadeError(
            f"column '{column}' holds half of a surrogate pair (\\ud800 to \\udfff alone)",
            where=where,
            do="write the character itself in UTF-8, or both halves",
        )
    return value


def encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8; JSON escapes can name code points that cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: str | Path, source_column: str, target_column: str) -> Iterator[Pair]:
    """Pairs from two text columns of a Parquet file, one record batch in memory at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise SaccadeError(
            "Parquet needs the pyarrow package", where=str(path), do="install it with: pip install 'saccade[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for column in (source_column, target_column):
                if column not in names:
                    raise SaccadeError(
                        f"no column is called '{column}'", where=str(path), do=did_you_mean(column, names)
                    )
            row = 0
            for batch in file.iter_batches(columns=[source_column, target_column]):
                for record in batch.to_pylist():
                    row += 1
                    where = f"{path}, row {row}"
                    yield Pair(text_of(record, source_column, where), text_of(record, target_column, where))
    except OSError as error:
        raise unreadable(path, error) from None
    except pyarrow.ArrowException as error:
        raise SaccadeError(f"is not a readable Parquet file ({error})", where=str(path), do="write it again") from None
    if row == 0:
        raise SaccadeError("is empty", where=str(path), do="name a file with one example a row")
