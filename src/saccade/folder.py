"""Folders that are whole or absent: written beside their place, flushed, sealed with a manifest, renamed into place.

Killed at any moment, a writer leaves the old folder or the new one, never a torn one. What it may leave besides are
hidden folders with these names, which `recover` puts right:

    .NAME.partial     a folder that was being written: nobody needs it
    .NAME.previous    the old folder, moved aside for the new one: it comes back if the new one did not arrive
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.untrusted_files import check_plain, parse_json, read_text, shown

MANIFEST = "manifest.json"
LARGEST = 2**20  # bytes of a file of plain data
PASSING = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES}
PIECE = 8 * 2**20  # bytes that are hashed at a time
AT_ONCE = 2  # files that are; a manifest may list thousands


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill; at the end it gets its manifest, is flushed to disk and takes the place of an older one."""
    path = Path(path)
    with folder_beside(path) as place:
        yield place
        seal(place)
        replace_folder(place, path)


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, to be filled and renamed to it; gone at the end if it was not."""
    place = partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        place.mkdir()
        try:
            yield place
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
    digest, size = hashlib.sha256(), 0
    # Large pieces: between two of them a thread that hashes has to wait for the interpreter, beside training for long.
    piece = memoryview(bytearray(min(PIECE, path.stat().st_size + 1)))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
            size += count
    return {"bytes": size, "sha256": digest.hexdigest()}


def verify(path: Path, *needed: str) -> frozenset[str]:
    """Check every file of a folder against its manifest and return their names; the first damaged one is named.

    The `needed` ones must be among them: a file that the manifest does not list could be anybody's.
    """
    with verifying(path, *needed) as names:
        return names


@contextlib.contextmanager
def verifying(path: Path, *needed: str) -> Iterator[frozenset[str]]:
    """Like `verify`, but large files are hashed while the block reads them; at its end all of them have been.

    The block may look at a large file only in ways that a damaged one cannot harm, and what it makes of it counts only
    if the block is left without an error. A damaged file is named rather than what the block stumbled over in it.
    """
    manifest = read_json(path / MANIFEST)
    listed = manifest.get("files")
    if not isinstance(listed, dict) or not listed or len(manifest) > 1:
        raise damaged(path / MANIFEST, "is no list of files")
    if read_plain(path / MANIFEST) != json_text(manifest):
        raise damaged(path / MANIFEST, "is not as it was written")
    for name in (*listed, *needed):
        if not is_file_name(name):
            raise damaged(path / MANIFEST, f"lists {shown(name)}, which is no name of a file in the folder")
        if name not in listed:
            raise damaged(path / name, "is not in the manifest")
        if not (path / name).is_file():
            raise damaged(path / name, "is missing")
    for name, expected in listed.items():
        if not isinstance(expected, dict) or expected.get("bytes") != (path / name).stat().st_size:
            raise damaged(path / name, "is not what was written: its size differs")
    large = {name for name, expected in listed.items() if expected["bytes"] > PIECE}
    for name in sorted(listed.keys() - large):
        check_digest(path / name, listed[name])
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verify") as pool:
        checks = [pool.submit(check_digest, path / name, listed[name]) for name in sorted(large)]
        try:
            yield frozenset(listed)
        finally:
            for check in checks:
                check.result()


def check_digest(path: Path, expected: Any) -> None:
    """Refuse a file that is not what its manifest says."""
    if describe_file(path) != expected:
        raise damaged(path, "is not what was written: its SHA-256 differs")


def is_file_name(name: str) -> bool:
    """Whether this names a file right in the folder, on every system."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0", ":"}


def replace_file(path: Path, text: str) -> None:
    """Write a small text file so that it is the old one or the new one, never a torn one."""
    place = partial(path)
    try:
        place.write_text(text, encoding="utf-8")
        flush(place)
        place.replace(path)
    finally:
        place.unlink(missing_ok=True)


def write_json(path: Path, values: Any) -> None:
    """Write plain data for people and machines."""
    path.write_text(json_text(values), encoding="utf-8", newline="\n")


def json_text(values: Any) -> str:
    """Plain data as it stands in a file."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file, which anybody may have written."""
    try:
        values = parse_json(read_plain(path))
        check_plain(values)
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise damaged(path, f"is not plain JSON ({what})") from None
    if not isinstance(values, dict):
        raise damaged(path, "is no JSON object")
    return values


def read_plain(path: Path) -> str:
    """Read a small text file, which anybody may have written."""
    try:
        return read_text(path, LARGEST)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise  # this says nothing about the file
        what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise damaged(path, what) from None


def damaged(path: Path, why: str) -> SaccadeError:
    """The error for a file that cannot be trusted."""
    return SaccadeError(why, where=str(path), do="the folder is damaged or foreign: copy it again, or use another")
