"""The input files of a run: which they are, whether they are still what they were, and a hash of what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import unreadable
from saccade.errors import SaccadeError
from saccade.folder import describe_file


class FileState(NamedTuple):
    """What the system says about a file without reading it."""

    size: int
    changed: int  # nanoseconds


class InputFile:
    """One input file, as it was when a run first looked at it."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.state = file_state(path)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file as it lies on disk."""
        try:
            described = describe_file(Path(self.path))
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.check_unchanged()
        return str(described["sha256"])

    def check_unchanged(self) -> None:
        """Refuse a file that somebody has written to since the run looked at it first."""
        if file_state(self.path) != self.state:
            raise SaccadeError(
                "changed while it was being read", where=self.path, do="try again when nothing writes to it any more"
            )


class Inputs:
    """All input files of a run, by their use."""

    def __init__(self, config: DataConfig) -> None:
        paths: Mapping[str, tuple[str, ...]] = {
            "source": config.source,
            "target": config.target,
            "valid_source": (config.valid_source,) if config.valid_source else (),
            "valid_target": (config.valid_target,) if config.valid_target else (),
        }
        self.files = {use: [InputFile(path) for path in some] for use, some in paths.items()}

    def all(self) -> list[InputFile]:
        """Every file, in a fixed order."""
        return [file for some in self.files.values() for file in some]

    def paths(self) -> dict[str, list[str]]:
        """Where the files are."""
        return {use: [file.path for file in some] for use, some in self.files.items()}

    def digests(self) -> dict[str, list[str]]:
        """What is in the files; reads them all."""
        return {use: [file.digest for file in some] for use, some in self.files.items()}

    def states(self) -> list[list[int]]:
        """Sizes and times of all files."""
        return [list(file.state) for file in self.all()]

    def check_unchanged(self) -> None:
        """Refuse files that somebody has written to since the run looked at them first."""
        for file in self.all():
            file.check_unchanged()


def file_state(path: str | Path) -> FileState:
    """Size and time of a regular file; data is read several times, so a pipe will not do."""
    try:
        found: Any = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(found.st_mode):
        raise unreadable(path, IsADirectoryError())
    if not stat.S_ISREG(found.st_mode):
        raise SaccadeError(
            "is no regular file, and data is read several times",
            where=str(path),
            do="write it to a file first; .gz files are read as they are",
        )
    return FileState(found.st_size, found.st_mtime_ns)
