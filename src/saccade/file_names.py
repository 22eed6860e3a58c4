"""Checks of names that become file names: a name must not contain a path, on any operating system."""

from __future__ import annotations

import os
from pathlib import Path

from saccade.errors import UsageError

MAX_NAME_LENGTH = 200  # bytes; most file systems allow 255, and temporary files add to the name


def is_file_name(name: str) -> bool:
    """Return whether a name is a plain file name, without a path, on every system."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0", ":"}


def without_links(path: Path) -> Path:
    """Return an absolute path without symbolic links; a link to itself stays, where `Path.resolve` raises an error."""
    return Path(os.path.realpath(path))


def check_file_name(name: str, what: str) -> str:
    """Return a name that a user chose; one that is a path, hidden, not printable or too long is a UsageError."""
    plain = is_file_name(name) and name.isprintable() and name == name.strip() and not name.startswith((".", "-"))
    if not plain or len(name.encode()) > MAX_NAME_LENGTH:
        raise UsageError(f"{what}: '{name}' is not a plain file name", hint="use letters, digits, '-', '_' and '.'")
    return name
