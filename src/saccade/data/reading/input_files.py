"""Input files of a run: paths, SHA-256 digests, and detection of changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import unreadable
from saccade.errors import SaccadeError
from saccade.folder import describe_file


class FileState(NamedTuple):
    """Size and modification time of a file."""

    size: int
    modified: int  # nanoseconds since the epoch


class InputFile:
    """An input file, with its size and modification time at the start of the run."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.state = file_state(path)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file on disk."""
        try:
            described = describe_file(Path(self.path))
        except OSError as error:
            raise unreadable(self.path, error) from None
        self.check_unchanged()
        return str(described["sha256"])

    def check_unchanged(self) -> None:
        """Raise an error if the file was modified since the start of the run."""
        if file_state(self.path) != self.state:
            raise SaccadeError(
                "changed while it was being read", where=self.path, hint="try again when no process writes to it"
            )


class InputFiles:
    """All input files of a run, by their role: source, target, valid_source, valid_target."""

    def __init__(self, config: DataConfig) -> None:
        paths: Mapping[str, tuple[str, ...]] = {
            "source": config.source,
            "target": config.target,
            "valid_source": (config.valid_source,) if config.valid_source else (),
            "valid_target": (config.valid_target,) if config.valid_target else (),
        }
        self.files = {role: [InputFile(path) for path in named] for role, named in paths.items()}

    def all(self) -> list[InputFile]:
        """All files, in a fixed order."""
        return [file for files in self.files.values() for file in files]

    def paths(self) -> dict[str, list[str]]:
        """The absolute paths of the files."""
        return {role: [file.path for file in files] for role, files in self.files.items()}

    def digests(self) -> dict[str, list[str]]:
        """The SHA-256 of each file; reads all files."""
        return {role: [file.digest for file in files] for role, files in self.files.items()}

    def states(self) -> list[list[int]]:
        """Sizes and modification times of all files."""
        return [list(file.state) for file in self.all()]

    def check_unchanged(self) -> None:
        """Raise an error if a file was modified since the start of the run."""
        for file in self.all():
            file.check_unchanged()


def file_state(path: str | Path) -> FileState:
    """Return size and modification time of a regular file; a pipe is an error, because data is read several times."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(status.st_mode):
        raise unreadable(path, IsADirectoryError())
    if not stat.S_ISREG(status.st_mode):
        raise SaccadeError(
            "is not a regular file, and data is read several times",
            where=str(path),
            hint="write it to a file first; .gz files can be read directly",
        )
    return FileState(status.st_size, status.st_mtime_ns)
