"""Atomic output folders for exports: like a model folder, but without a manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from saccade.errors import SaccadeError
from saccade.folder import fsync, staging_folder


def check_free(path: Path) -> None:
    """Raise an error if the path exists, unless it is an empty folder."""
    if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise SaccadeError("already exists", where=str(path), hint="choose another --output; nothing is overwritten")


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` on success and removed on failure."""
    check_free(path)
    with staging_folder(path) as folder:
        yield folder
        for file in (*folder.rglob("*"), folder):
            fsync(file)
        if path.exists():
            path.rmdir()
        folder.rename(path)
        fsync(path.parent)
