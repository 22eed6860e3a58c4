"""Folders for other programs: whole or absent like a model folder, but without a manifest, unknown to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from saccade.errors import SaccadeError
from saccade.folder import flush, folder_beside


def check_free(path: Path) -> None:
    """Refuse a place where something stands; an empty folder is none."""
    if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise SaccadeError("already exists", where=str(path), do="choose another --output; nothing is overwritten")


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, subfolders and all; it takes its place when it is whole, and leaves nothing if it fails."""
    check_free(path)
    with folder_beside(path) as place:
        yield place
        for file in (*place.rglob("*"), place):
            flush(file)
        if path.exists():
            path.rmdir()
        place.rename(path)
        flush(path.parent)
