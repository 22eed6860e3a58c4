"""The CTranslate2 form of a model, kept in its folder: written once, proved equal, made anew when anything changes.

    MODEL/ctranslate2/model.bin, config.json, *_vocabulary.json    what the runtime reads
    MODEL/ctranslate2/proof.json                                   what it was made of, and how it was proved
    MODEL/ctranslate2/manifest.json                                SHA-256 of every other file

The runtime trusts what it reads, so we hand it only what was written in this place: the proof knows the file of weights
by its number and its time in the file system, which nobody who sends a folder can know. A copied folder has no cache.

One process writes at a time, and the others wait for it. Where nothing can be written, the files are in a temporary
folder until the runtime has read them.
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

NAME = "ctranslate2"
PROOF = "proof.json"

Key = dict[str, Any]
"""What an export depends on."""


class Export(NamedTuple):
    """A folder that the runtime can read, and what the proof of it says."""

    path: Path
    proof: dict[str, Any]


def key_of(manifest: Mapping[str, Any]) -> Key:
    """The key of a model folder with this manifest, for the runtime that is here."""
    files = manifest["files"]
    return {
        "weights": files[WEIGHTS]["sha256"],
        "config": files[CONFIG]["sha256"],
        "saccade": __version__,
        "ctranslate2": str(import_runtime().__version__),
    }


def claims_export(folder: Path) -> bool:
    """Whether a model folder seems to hold an export of itself; whoever reads it looks more closely."""
    try:
        return read_claim(folder / NAME, key_of(read_json(folder / MANIFEST))) is not None
    except (SaccadeError, OSError, LookupError, TypeError):
        return False


def read_claim(path: Path, key: Key) -> dict[str, Any] | None:
    """The proof of an export, if it is one of this key that was written where it stands."""
    values = read_json(path / PROOF)
    if values.get("key") != key or values.get("file") != identity(path / MODEL):
        return None
    proof = values.get("proof")
    return proof if isinstance(proof, dict) else None


def find_export(folder: Path, key: Key) -> Export | None:
    """The export in a model folder, if it is whole, of these weights, and was written where it stands."""
    path = folder / NAME
    try:
        verify(path, MODEL, PROOF)
        proof = read_claim(path, key)
    except (SaccadeError, OSError):
        return None
    return None if proof is None else Export(path, proof)


@contextlib.contextmanager
def open_export(
    folder: Path, key: Key, write: Callable[[Path], None], prove: Callable[[Path], dict[str, Any]]
) -> Iterator[Export]:
    """The export of a model folder; what is missing, stale or damaged is written and proved first.

    Once the block is left the files may be gone: the runtime has read them by then.
    """
    with locked(folder):
        found = find_export(folder, key)
        if found is None and (folder / MANIFEST).is_file():  # a model that was deleted meanwhile stays deleted
            with contextlib.suppress(SaccadeError), atomic_folder(folder / NAME) as place:
                fill(place, key, write, prove)
            found = find_export(folder, key)
        if found is not None:
            yield found
            return
    with tempfile.TemporaryDirectory(prefix="saccade-ctranslate2-") as place:
        proof = fill(Path(place), key, write, prove)
        yield Export(Path(place), proof)


def fill(
    place: Path, key: Key, write: Callable[[Path], None], prove: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Write an export and its proof into an empty folder."""
    write(place)
    fsync(place / MODEL)
    proof = prove(place)
    write_json(place / PROOF, {"key": key, "proof": proof, "file": identity(place / MODEL)})
    return proof


def identity(path: Path) -> list[int]:
    """What a file system says of a file that no copy of it shares: its number, size and time of last change."""
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_ctime_ns]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing an export of this model; where that cannot be, nobody waits."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no directories
        yield
        return
    try:
        lock_file(handle, wait=True)
        yield
    finally:
        os.close(handle)
