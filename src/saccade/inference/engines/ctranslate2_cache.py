"""Cache of the CTranslate2 export of a model, in the model folder: written and checked once, redone after any change.

    MODEL/ctranslate2/model.bin, config.json, *_vocabulary.json    files of the runtime
    MODEL/ctranslate2/parity.json                                  what was exported, and how it compares with torch
    MODEL/ctranslate2/manifest.json                                SHA-256 of every other file

The runtime trusts its files, so it is only given files that were written on this machine: `parity.json` holds inode
and change time of the weights, which the sender of a folder cannot know. A copied folder has no valid cache.

One process writes at a time; the others wait. If the model folder is not writable, the export is written to a temporary
folder and deleted after the runtime has read it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from saccade.errors import SaccadeError
from saccade.file_lock import lock_file
from saccade.folder import MANIFEST, atomic_folder, fsync, read_json, verify, write_json
from saccade.interop.ctranslate2 import MODEL, import_runtime
from saccade.model_folder import CONFIG, WEIGHTS
from saccade.version import __version__

CACHE = "ctranslate2"
PARITY = "parity.json"

CacheKey = dict[str, Any]
"""Everything that an export depends on."""


class Export(NamedTuple):
    """A folder that the runtime can read, and the result of its parity check."""

    path: Path
    parity: dict[str, Any]


def cache_key(manifest: Mapping[str, Any]) -> CacheKey:
    """Return the cache key of a model folder with this manifest and the installed runtime."""
    files = manifest["files"]
    return {
        "weights": files[WEIGHTS]["sha256"],
        "config": files[CONFIG]["sha256"],
        "saccade": __version__,
        "ctranslate2": str(import_runtime().__version__),
    }


def seems_cached(folder: Path) -> bool:
    """Return whether a model folder seems to hold a valid export; `find_export` verifies the files."""
    try:
        return read_parity(folder / CACHE, cache_key(read_json(folder / MANIFEST))) is not None
    except (SaccadeError, OSError, LookupError, TypeError):
        return False


def read_parity(path: Path, key: CacheKey) -> dict[str, Any] | None:
    """Return the parity result of an export; None if it has another key or was not written in this folder."""
    values = read_json(path / PARITY)
    if values.get("key") != key or values.get("file") != file_identity(path / MODEL):
        return None
    parity = values.get("parity")
    return parity if isinstance(parity, dict) else None


def find_export(folder: Path, key: CacheKey) -> Export | None:
    """Return the export in a model folder; None if it is missing, damaged, outdated or copied."""
    path = folder / CACHE
    try:
        verify(path, MODEL, PARITY)
        parity = read_parity(path, key)
    except (SaccadeError, OSError):
        return None
    return None if parity is None else Export(path, parity)


@contextlib.contextmanager
def open_export(
    folder: Path, key: CacheKey, export: Callable[[Path], None], check: Callable[[Path], dict[str, Any]]
) -> Iterator[Export]:
    """Yield the export of a model folder; without a valid one in the cache, `export` writes and `check` verifies it.

    The files may be deleted at the end of the block; the runtime has read them by then.
    """
    with locked(folder):
        cached = find_export(folder, key)
        if cached is None and (folder / MANIFEST).is_file():  # do not recreate a model folder that was just deleted
            with contextlib.suppress(SaccadeError), atomic_folder(folder / CACHE) as path:
                write_export(path, key, export, check)
            cached = find_export(folder, key)
        if cached is not None:
            yield cached
            return
    with tempfile.TemporaryDirectory(prefix="saccade-ctranslate2-") as name:
        yield Export(Path(name), write_export(Path(name), key, export, check))


def write_export(
    path: Path, key: CacheKey, export: Callable[[Path], None], check: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Write an export and its parity result into an empty folder; return the result."""
    export(path)
    fsync(path / MODEL)
    parity = check(path)
    write_json(path / PARITY, {"key": key, "parity": parity, "file": file_identity(path / MODEL)})
    return parity


def file_identity(path: Path) -> list[int]:
    """Return the inode, size and change time of a file: no copy of the file has all three."""
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_ctime_ns]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a model folder against exports by other processes; without a lock where folders cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open directories
        yield
        return
    try:
        lock_file(handle, wait=True)
        yield
    finally:
        os.close(handle)
