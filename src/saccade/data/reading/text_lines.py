"""Decoding a byte stream into UTF-8 lines in bounded memory; errors name the file and the line."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from saccade.errors import InputFileError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_LINE_LENGTH = 10_000_000
"""Maximum bytes of a line; a longer line is an error, so a file without line feeds cannot exhaust memory."""
READ_SIZE = 1 << 18  # bytes


class FileError(InputFileError):
    """An error in an input file; `kind`, `file` and `line` are attributes."""

    def __init__(
        self, kind: str, what: str, *, file: str | Path, hint: str, line: int | None = None, unit: str = "line"
    ) -> None:
        self.kind = kind
        self.file = str(file)
        self.line = line
        super().__init__(what, where=self.file if line is None else f"{self.file}, {unit} {line}", hint=hint)


ErrorHandler = Callable[[FileError], None]
"""Called with each error; if it returns, reading continues after the error."""


def raise_error(error: FileError) -> None:
    """The default error handler: stop at the first error."""
    raise error


class Lines:
    """The lines of a UTF-8 byte stream, with None for each invalid line; can be iterated once.

    `read(n)` returns at most n bytes, and none at the end of the stream. Only a line feed ends a line, as in `wc -l`
    and `paste`; a carriage return before it is removed.
    """

    def __init__(self, read: Callable[[int], bytes], name: str | Path, on_error: ErrorHandler = raise_error) -> None:
        self.read = read
        self.name = name
        self.on_error = on_error
        self.count = 0  # lines so far, invalid ones included
        self.complete = False  # whether the end was reached

    def __iter__(self) -> Iterator[str | None]:
        first = True
        for block in self.blocks():
            if first:
                first = False
                block = block.removeprefix(BYTE_ORDER_MARK)
                error = detect_other_format(block[: block.find(b"\n") + 1] or block, self.name)
                if error is not None:
                    self.on_error(error)
                    return  # every other line would be invalid too
            try:
                text = block.decode("utf-8") if len(block) <= MAX_LINE_LENGTH else None
            except UnicodeDecodeError:
                text = None
            if text is None:
                yield from self.decode_line_by_line(block)
                continue
            lines = text.removesuffix("\n").split("\n")
            if "\r" in text:
                lines = [line.removesuffix("\r") for line in lines]
            self.count += len(lines)
            yield from lines
        self.complete = True

    def blocks(self) -> Iterator[bytes]:
        """Blocks of complete lines; of a line that is too long, only the beginning."""
        rest, skipping = b"", False
        while data := self.read(READ_SIZE):
            if skipping:
                _, feed, data = data.partition(b"\n")
                skipping = not feed
            lines, feed, end = data.rpartition(b"\n")
            if feed:
                yield rest + lines + feed
                rest = end
            else:
                rest += data
            if len(rest) > MAX_LINE_LENGTH:
                yield rest
                rest, skipping = b"", True
        if rest:
            yield rest

    def decode_line_by_line(self, block: bytes) -> Iterator[str | None]:
        """The lines of a block that has an invalid line."""
        for raw in block.removesuffix(b"\n").split(b"\n"):
            self.count += 1
            line = None
            try:
                if len(raw) > MAX_LINE_LENGTH:
                    self.on_error(too_long(self.name, self.count))
                else:
                    line = raw.decode("utf-8").removesuffix("\r")
            except UnicodeDecodeError as error:
                self.on_error(not_utf8(error, self.name, self.count))
            yield line


def too_long(name: str | Path, number: int) -> FileError:
    """The error for a line longer than MAX_LINE_LENGTH."""
    what = f"has more than {MAX_LINE_LENGTH:,} bytes"
    return FileError("too-long", what, file=name, line=number, hint="put one example on each line")


def not_utf8(error: UnicodeDecodeError, name: str | Path, number: int, unit: str = "line") -> FileError:
    """The error for a line that is not UTF-8."""
    return FileError(
        "not-utf8",
        f"byte {error.start + 1} of the {unit} is not UTF-8 (0x{error.object[error.start]:02x})",
        file=name,
        line=number,
        unit=unit,
        hint="convert the file, for example: iconv -f latin1 -t utf-8 old > new",
    )


class Signature(NamedTuple):
    """The first bytes of a file format that is not plain text."""

    start: bytes
    what: str
    hint: str


def convert_with_iconv(encoding: str) -> str:
    """The advice for a file in another encoding."""
    return f"convert it with: iconv -f {encoding} -t utf-8 old > new"


SIGNATURES = (
    Signature(b"\xff\xfe\x00\x00", "is UTF-32", convert_with_iconv("utf-32")),
    Signature(b"\x00\x00\xfe\xff", "is UTF-32", convert_with_iconv("utf-32")),
    Signature(b"\xff\xfe", "is UTF-16", convert_with_iconv("utf-16")),
    Signature(b"\xfe\xff", "is UTF-16", convert_with_iconv("utf-16")),
    Signature(b"\x1f\x8b", "is compressed by gzip, but its name does not end in .gz", "rename it to end in .gz"),
    Signature(b"PK\x03\x04", "is a zip archive", "unpack it and give the text file in it"),
    Signature(b"BZh", "is compressed by bzip2", "unpack it with bunzip2, or compress it with gzip"),
    Signature(b"\xfd7zXZ\x00", "is compressed by xz", "unpack it with unxz, or compress it with gzip"),
    Signature(b"\x28\xb5\x2f\xfd", "is compressed by zstd", "unpack it with unzstd, or compress it with gzip"),
    Signature(b"PAR1", "is a Parquet file, but its name does not end in .parquet", "rename it to end in .parquet"),
    Signature(b"%PDF", "is a PDF file", "give a text file"),
)


def detect_other_format(first: bytes, name: str | Path) -> FileError | None:
    """The error for a file that is not UTF-8 text, judged by its first line; None if it may be."""
    for start, what, hint in SIGNATURES:
        if first.startswith(start):
            return FileError("not-text", what, file=name, hint=hint)
    start = first[:1000]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if even + odd > 1 and 3 * (even + odd) >= len(start) and 0 in (even, odd):  # "a" is 61 00, or 00 61
        return FileError("not-text", "is UTF-16", file=name, hint=convert_with_iconv("utf-16le" if odd else "utf-16be"))
    if not first.endswith(b"\n") and first.count(b"\r") > 1:
        return FileError(
            "not-text",
            "has carriage returns but no line feeds (classic Mac OS line ends)",
            file=name,
            hint="convert it with: tr '\\r' '\\n' < old > new",
        )
    return None


class FileLines:
    """The lines of a file, plain or .gz, with None for each invalid line; can be iterated once."""

    def __init__(self, path: str | Path, on_error: ErrorHandler = raise_error) -> None:
        self.path = path
        self.on_error = on_error
        self.lines: Lines | None = None

    @property
    def count(self) -> int:
        """Lines so far, invalid ones included."""
        return self.lines.count if self.lines else 0

    @property
    def complete(self) -> bool:
        """Whether the file has lines and all of them were read."""
        return self.lines is not None and self.lines.complete and self.lines.count > 0

    def __iter__(self) -> Iterator[str | None]:
        try:
            with open_bytes(self.path) as file:
                self.lines = Lines(file.read1, self.path, self.on_error)
                yield from self.lines
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            what = f"is damaged or truncated after line {self.count:,} ({error})"
            hint = "copy or download the file again; `gzip -t` tests it"
            self.on_error(FileError("damaged", what, file=self.path, hint=hint))
        except OSError as error:
            self.on_error(unreadable(self.path, error))
        if self.lines is not None and self.lines.complete and self.count == 0:
            self.on_error(FileError("empty", "is empty", file=self.path, hint="give a file with one example per line"))


def open_bytes(path: str | Path) -> io.BufferedReader:
    """Open a file for reading, decompressed if its name ends in .gz."""
    if str(path).endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"), READ_SIZE)
    return open(path, "rb")


def unreadable(path: str | Path, error: OSError) -> FileError:
    """The error for a file that cannot be opened or read."""
    what, hint = f"cannot be read: {error.strerror or error}", "check the file's permissions"
    if isinstance(error, FileNotFoundError):
        what, hint = "no such file", "check the path; it is relative to the current directory"
    elif isinstance(error, IsADirectoryError):
        what, hint = "is a directory", "give a file in it"
    return FileError("unreadable", what, file=path, hint=hint)
