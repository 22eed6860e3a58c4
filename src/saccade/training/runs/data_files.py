"""Checks before a run that its data files can be opened, with advice for those that are not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from saccade.data.config import DataConfig
from saccade.data.reading.input_files import file_state
from saccade.data.reading.pair_files import open_bytes, unreadable
from saccade.errors import SaccadeError

DATA_FILES = ("source", "target", "valid_source", "valid_target")
NOTE = "# Data:"  # begins the comment of a recipe about its data


def data_files(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield name of the setting and path of every data file."""
    for name in DATA_FILES:
        paths = getattr(data, name)
        for path in paths if isinstance(paths, tuple) else (paths,):
            if path is not None:
                yield name, path


def check_data_files(data: DataConfig, missing_hint: str | None = None) -> None:
    """Raise an error for the first data file that cannot be opened; `missing_hint` is the advice if it is missing."""
    for _, path in data_files(data):
        try:
            if os.path.exists(path):
                file_state(path)  # raises an error for a pipe, which opening would wait for
            open_bytes(path).close()
        except FileNotFoundError as error:
            found = unreadable(path, error)
            raise SaccadeError(found.what, where=found.where, hint=missing_hint or found.hint) from None
        except OSError as error:
            raise unreadable(path, error) from None


def is_data_missing(data: DataConfig) -> bool:
    """Return whether a data file does not exist."""
    return any(not os.path.exists(path) for _, path in data_files(data))


def data_root() -> Path:
    """Return the folder that data paths of recipes are relative to."""
    return Path(os.environ.get("SACCADE_DATA", "data"))


def recipe_hint(recipe: Path) -> str:
    """Advise where the data of a recipe is expected, and quote its comment on where to get it."""
    lines = [f"data paths of a recipe are relative to $SACCADE_DATA, here {data_root().absolute()}"]
    comment: list[str] = []
    for line in recipe.read_text(encoding="utf-8", errors="replace").splitlines():
        if (comment and line.rstrip() in ("#", "")) or not line.startswith("#"):
            break
        if comment or line.startswith(NOTE):
            comment.append(line.removeprefix("#").strip())
    return "\n  ".join([*lines, " ".join(comment)] if comment else lines)


def moved_data_hint(run: Path, data: DataConfig) -> str:
    """Advise which options of a resumed run name the new paths of missing data files."""
    names = dict.fromkeys(name for name, path in data_files(data) if not os.path.exists(path))
    options = " ".join(f"--data.{name.replace('_', '-')} NEW" for name in names)
    return f"if the data was moved, give its new path: saccade train --resume {run} {options}"
