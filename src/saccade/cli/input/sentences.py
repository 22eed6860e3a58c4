"""The sentences that a command translates or explains: of the command line, a file, or standard input."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from saccade import messages
from saccade.cli.output.output_paths import STANDARD_STREAM
from saccade.data.reading.text_lines import READ_SIZE, Lines
from saccade.errors import SaccadeError, UsageError
from saccade.file_names import MAX_NAME_LENGTH

COUNTED_BYTES = 2**30  # lines of larger files are not counted in advance


@dataclass(frozen=True)
class SentenceInput:
    """The lines to translate: of a file, of standard input, or given on the command line."""

    file: Path | None = None
    sentences: tuple[str, ...] | None = None

    @classmethod
    def of(cls, sentences: Sequence[str] | None, file: Path | None) -> SentenceInput:
        """Return the input that the command line names; sentences beside a file are an error."""
        file = None if is_standard(file) else file
        if not sentences:
            return cls(file)
        if file is not None:
            raise UsageError("sentences and --input are two inputs", hint="give one of the two")
        for sentence in sentences:
            check_sentence(sentence)
            if len(sentence) < MAX_NAME_LENGTH and Path(sentence).is_file():
                messages.warn(f"'{sentence}' is translated as a sentence; to translate the file: --input {sentence}")
        return cls(sentences=tuple(line for sentence in sentences for line in sentence.split("\n")))

    @property
    def interactive(self) -> bool:
        """Whether a person types the lines."""
        return self.file is None and self.sentences is None and sys.stdin.isatty()

    def lines(self) -> Iterator[str]:
        """Return the lines."""
        from saccade.data.reading.pair_files import read_lines

        if self.sentences is not None:
            return iter(self.sentences)
        return read_standard_input() if self.file is None else read_lines(self.file)

    def count(self) -> int | None:
        """Return the number of lines if it can be known without reading a pipe."""
        if self.sentences is not None:
            return len(self.sentences)
        if self.file is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # not a file
                return count_lines(sys.stdin.fileno())
            return None
        if self.file.suffix == ".gz":
            return None
        with contextlib.suppress(OSError), self.file.open("rb") as file:
            return count_lines(file.fileno())
        return None


def is_standard(path: Path | None) -> bool:
    """Return whether a path is `-`, for standard input or output."""
    return path is not None and str(path) == STANDARD_STREAM


def count_lines(descriptor: int) -> int | None:
    """Return the number of lines from the current position of a regular file, which does not move.

    None for a pipe, and for a file that takes long to read.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > COUNTED_BYTES:
        return None
    position, count, last = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while block := os.pread(descriptor, READ_SIZE, position):
        position, count, last = position + len(block), count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def read_standard_input() -> Iterator[str]:
    """Yield the lines of standard input, decoded as UTF-8 regardless of the locale; empty input is allowed."""
    try:
        for line in Lines(sys.stdin.buffer.readline, "standard input"):
            if line is not None:
                yield line
    except OSError as error:
        raise SaccadeError(
            f"cannot be read: {error.strerror}",
            where="standard input",
            hint="give sentences as arguments, a file with --input FILE, or a pipe",
        ) from None


def standard_input_is_ready() -> bool:
    """Return whether standard input has data now; reading from a pipe may block."""
    try:
        return bool(select.select([sys.stdin.buffer], [], [], 0)[0])
    except (OSError, TypeError, ValueError):  # not a file, or the system can only select sockets
        return False


def check_sentence(text: str) -> None:
    """Raise an error for a sentence of the command line that is not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(
            f"the sentence '{text}' is not UTF-8", hint="give it in UTF-8, or in a file: --input FILE"
        ) from None
