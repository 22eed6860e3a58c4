"""An output file that is written one record at a time; after an interruption it knows how many are complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from saccade.errors import not_written


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[str]]:
    """Yield the opened output file, or standard output."""
    if path is None:
        yield sys.stdout
        return
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        if error.filename is not None:  # another file
            raise
        raise not_written(path, error) from None


class RecordWriter:
    """Writes records, of one or several lines each, with one call per record, so that none is left incomplete."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.start = position(file)
        # Records and their bytes, with that of the call in progress; Ctrl-C can come before and after its write.
        self.given = (0, 0)

    def write(self, text: str) -> None:
        """Write one record, and flush it: the next one may take long."""
        count, size = self.given
        self.given = (count + 1, size + len(text.encode("utf-8", "backslashreplace")))
        self.file.write(text)
        self.file.flush()

    def complete(self) -> int:
        """Return the number of records in the file; for a pipe or a terminal, those that were given to it."""
        with suppress(OSError, ValueError):
            self.file.flush()
        count, size = self.given
        now = position(self.file)
        if self.start is not None and now is not None and now - self.start < size:
            return count - 1
        return count


def position(file: IO[str]) -> int | None:
    """Return the position in a file in bytes; None for a pipe or a terminal."""
    try:
        return os.lseek(file.fileno(), 0, os.SEEK_CUR)
    except (OSError, ValueError):  # a stream without a descriptor
        return None
