"""Bytes to lines of text, wherever they come from: UTF-8 or a fault that names file and line, in bounded memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from saccade.errors import SaccadeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 10_000_000
"""Bytes of a line that are read before it counts as a fault: a file without line feeds must not fill the memory."""
PIECE = 1 << 18  # bytes read at a time


class FileError(SaccadeError):
    """A fault in a file that was given; the place stands in it as data too."""

    def __init__(
        self, kind: str, what: str, *, file: str | Path, do: str, line: int | None = None, unit: str = "line"
    ) -> None:
        self.kind = kind
        self.file = str(file)
        self.line = line
        super().__init__(what, where=self.file if line is None else f"{self.file}, {unit} {line}", do=do)


Report = Callable[[FileError], None]
"""Is told each fault; if it returns, reading goes on after the fault."""


def refuse(fault: FileError) -> None:
    """Stop at the first fault."""
    raise fault


class Lines:
    """Lines of UTF-8, None in the place of each faulty one; to be iterated once.

    `read` gives the next bytes, at most as many as it is asked for and none at the end. Only a line feed ends a line,
    as in `wc -l` and `paste`; a carriage return before it belongs to the line's end.
    """

    def __init__(self, read: Callable[[int], bytes], name: str | Path, report: Report = refuse) -> None:
        self.read = read
        self.name = name
        self.report = report
        self.count = 0  # lines so far, faulty ones included
        self.whole = False  # whether the end was reached

    def __iter__(self) -> Iterator[str | None]:
        first = True
        for block in self.blocks():
            if first:
                first = False
                block = block.removeprefix(BYTE_ORDER_MARK)
                fault = no_lines_of_utf8(block[: block.find(b"\n") + 1] or block, self.name)
                if fault is not None:
                    self.report(fault)
                    return  # all other lines would be faulty too
            try:
                text = block.decode("utf-8") if len(block) <= LONGEST_LINE else None
            except UnicodeDecodeError:
                text = None
            if text is None:
                yield from self.one_by_one(block)
                continue
            lines = text.removesuffix("\n").split("\n")
            if "\r" in text:
                lines = [line.removesuffix("\r") for line in lines]
            self.count += len(lines)
            yield from lines
        self.whole = True

    def blocks(self) -> Iterator[bytes]:
        """Some whole lines at a time; of a line that is too long, its beginning."""
        rest, skipping = b"", False
        while piece := self.read(PIECE):
            if skipping:
                _, feed, piece = piece.partition(b"\n")
                skipping = not feed
            whole, feed, end = piece.rpartition(b"\n")
            if feed:
                yield rest + whole + feed
                rest = end
            else:
                rest += piece
            if len(rest) > LONGEST_LINE:
                yield rest
                rest, skipping = b"", True
        if rest:
            yield rest

    def one_by_one(self, block: bytes) -> Iterator[str | None]:
        """The lines of a block with a fault in it."""
        for raw in block.removesuffix(b"\n").split(b"\n"):
            self.count += 1
            line = None
            try:
                if len(raw) > LONGEST_LINE:
                    self.report(too_long(self.name, self.count))
                else:
                    line = raw.decode("utf-8").removesuffix("\r")
            except UnicodeDecodeError as error:
                self.report(not_utf8(error, self.name, self.count))
            yield line


def too_long(name: str | Path, number: int) -> FileError:
    """What to tell about a line that is longer than any text."""
    what = f"has more than {LONGEST_LINE:,} bytes"
    return FileError("too-long", what, file=name, line=number, do="put one example on each line")


def not_utf8(error: UnicodeDecodeError, name: str | Path, number: int, unit: str = "line") -> FileError:
    """What to tell about a byte that is not UTF-8."""
    return FileError(
        "not-utf8",
        f"byte {error.start + 1} of the {unit} is not UTF-8 (0x{error.object[error.start]:02x})",
        file=name,
        line=number,
        unit=unit,
        do="convert the file, for example: iconv -f latin1 -t utf-8 old > new",
    )


class Signature(NamedTuple):
    """How a file begins that is no text."""

    start: bytes
    what: str
    do: str


def utf16(name: str) -> str:
    """What to do about UTF-16."""
    return f"convert it with: iconv -f {name} -t utf-8 old > new"


SIGNATURES = (
    Signature(b"\xff\xfe\x00\x00", "is UTF-32", "convert it with: iconv -f utf-32 -t utf-8 old > new"),
    Signature(b"\x00\x00\xfe\xff", "is UTF-32", "convert it with: iconv -f utf-32 -t utf-8 old > new"),
    Signature(b"\xff\xfe", "is UTF-16", utf16("utf-16")),
    Signature(b"\xfe\xff", "is UTF-16", utf16("utf-16")),
    Signature(b"\x1f\x8b", "is compressed by gzip, but its name does not say so", "let its name end in .gz"),
    Signature(b"PK\x03\x04", "is a zip archive", "unpack it and name the text file in it"),
    Signature(b"BZh", "is compressed by bzip2", "unpack it with bunzip2, or compress it by gzip"),
    Signature(b"\xfd7zXZ\x00", "is compressed by xz", "unpack it with unxz, or compress it by gzip"),
    Signature(b"\x28\xb5\x2f\xfd", "is compressed by zstd", "unpack it with unzstd, or compress it by gzip"),
    Signature(b"PAR1", "is a Parquet file, but its name does not say so", "let its name end in .parquet"),
    Signature(b"%PDF", "is a PDF file", "name a text file"),
)


def no_lines_of_utf8(first: bytes, name: str | Path) -> FileError | None:
    """What is wrong with the whole of a file, judged by its first line, if anything is."""
    for start, what, do in SIGNATURES:
        if first.startswith(start):
            return FileError("not-text", what, file=name, do=do)
    start = first[:1000]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if even + odd > 1 and 3 * (even + odd) >= len(start) and 0 in (even, odd):  # "a" is 61 00, or 00 61
        return FileError("not-text", "is UTF-16", file=name, do=utf16("utf-16le" if odd else "utf-16be"))
    if not first.endswith(b"\n") and first.count(b"\r") > 1:
        return FileError(
            "not-text",
            "has carriage returns but no line feed, the line ends of an old Mac",
            file=name,
            do="convert it with: tr '\\r' '\\n' < old > new",
        )
    return None


class FileLines:
    """The lines of a file, plain or .gz, None in the place of each faulty one; to be iterated once."""

    def __init__(self, path: str | Path, report: Report = refuse) -> None:
        self.path = path
        self.report = report
        self.lines: Lines | None = None

    @property
    def count(self) -> int:
        """Lines so far, faulty ones included."""
        return self.lines.count if self.lines else 0

    @property
    def whole(self) -> bool:
        """Whether there are lines and all of them were read."""
        return self.lines is not None and self.lines.whole and self.lines.count > 0

    def __iter__(self) -> Iterator[str | None]:
        try:
            with open_bytes(self.path) as file:
                self.lines = Lines(file.read1, self.path, self.report)
                yield from self.lines
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            what = f"is damaged or cut off after line {self.count:,} ({error})"
            do = "copy or download the file again; `gzip -t` tests it"
            self.report(FileError("damaged", what, file=self.path, do=do))
        except OSError as error:
            self.report(unreadable(self.path, error))
        if self.lines is not None and self.lines.whole and self.count == 0:
            self.report(FileError("empty", "is empty", file=self.path, do="name a file with one example a line"))


def open_bytes(path: str | Path) -> io.BufferedReader:
    """A file opened for reading, unpacked on the way if its name ends in .gz."""
    if str(path).endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"), PIECE)
    return open(path, "rb")


def unreadable(path: str | Path, error: OSError) -> FileError:
    """What to tell when the system refuses a file."""
    what, do = f"cannot be read: {error.strerror or error}", "check the file's permissions"
    if isinstance(error, FileNotFoundError):
        what, do = "no such file", "check the path; it is relative to where you run this"
    elif isinstance(error, IsADirectoryError):
        what, do = "is a directory", "name a file in it"
    return FileError("unreadable", what, file=path, do=do)
