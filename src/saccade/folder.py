"""Folders that are whole or absent: written beside their place, flushed, sealed with a manifest, renamed into place.

Killed at any moment, a writer leaves the old folder or the new one, never a torn one. What it may leave besides are
hidden folders with these names, which `recover` puts right:

    .NAME.partial     a folder that was being written: nobody needs it
    .NAME.previous    the old folder, moved aside for the new one: it comes back if the new one did not arrive
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError

MANIFEST = "manifest.json"


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill; at the end it gets its manifest, is flushed to disk and takes the place of an older one."""
    path = Path(path)
    place = partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        place.mkdir()
        try:
            yield place
            seal(place)
            replace_folder(place, path)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror or error}",
            where=str(path),
            do="free some space, or choose another place",
        ) from error


def seal(place: Path) -> None:
    """Write the manifest of a filled folder and make all of it durable."""
    files = {file.name: describe_file(file) for file in sorted(place.iterdir())}
    write_json(place / MANIFEST, {"files": files})
    for file in place.iterdir():
        flush(file)
    flush(place)


def replace_folder(new: Path, path: Path) -> None:
    """Rename `new` to `path`; what stood there is removed afterwards."""
    if path.exists():
        path.rename(previous(path))
    new.rename(path)
    flush(path.parent)
    shutil.rmtree(previous(path), ignore_errors=True)


def recover(path: Path) -> None:
    """Put right what a killed writer of this folder left behind; only one process may write it."""
    if previous(path).exists() and not path.exists():
        previous(path).rename(path)
    shutil.rmtree(previous(path), ignore_errors=True)
    shutil.rmtree(partial(path), ignore_errors=True)


def partial(path: Path) -> Path:
    """Where a folder is written."""
    return path.with_name(f".{path.name}.partial")


def previous(path: Path) -> Path:
    """Where the old folder waits while the new one takes its place."""
    return path.with_name(f".{path.name}.previous")


def flush(path: Path) -> None:
    """Make a file or a folder's entries durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def describe_file(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def verify(path: Path) -> None:
    """Check every file of a folder against its manifest; the first damaged one is named."""
    manifest = read_json(path / MANIFEST).get("files")
    if not isinstance(manifest, dict):
        raise damaged(path / MANIFEST, "lists no files")
    for name, expected in manifest.items():
        file = path / Path(name).name
        if not file.is_file():
            raise damaged(file, "is missing")
        if describe_file(file) != expected:
            raise damaged(file, "is not what was written: its SHA-256 differs")


def write_json(path: Path, values: Any) -> None:
    """Write plain data for people and machines."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    if not isinstance(values, dict):
        raise damaged(path, "is no JSON object")
    return values


def damaged(path: Path, why: str) -> SaccadeError:
    """The error for a file that cannot be trusted."""
    return SaccadeError(why, where=str(path), do="the folder is damaged or foreign: copy it again, or use another")
