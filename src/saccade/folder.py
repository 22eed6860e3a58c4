"""Atomic folders: written to a staging folder, hashed into a manifest, flushed to disk, renamed into place.

A writer killed at any moment leaves the old folder or the new one, never an incomplete one. It may also leave hidden
folders with these names, which `recover` cleans up:

    .NAME.partial     the staging folder: removed
    .NAME.previous    the old folder, renamed before the new one takes its name: restored if the new one is missing
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

from saccade.errors import InputFileError, not_written
from saccade.file_names import is_file_name
from saccade.untrusted_files import check_plain, parse_json, read_text, shown

MANIFEST = "manifest.json"
MAX_JSON_BYTES = 2**20
TRANSIENT_ERRORS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES}
HASH_CHUNK = 8 * 2**20  # bytes
HASH_THREADS = 2  # a manifest may list thousands of files


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; on exit it gets a manifest, is flushed to disk and replaces `path` atomically."""
    path = Path(path)
    with staging_folder(path) as staging:
        yield staging
        seal(staging)
        replace_folder(staging, path)


@contextlib.contextmanager
def staging_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that the caller fills and renames to `path`; removed on exit if it still exists."""
    staging = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise not_written(path, error) from error


def seal(folder: Path) -> None:
    """Write the manifest of a filled folder and flush the folder to disk."""
    files = {file.name: describe_file(file) for file in sorted(folder.iterdir())}
    write_json(folder / MANIFEST, {"files": files})
    for file in folder.iterdir():
        fsync(file)
    fsync(folder)


def replace_folder(new: Path, path: Path) -> None:
    """Rename `new` to `path` and remove the old folder."""
    if path.exists():
        path.rename(previous_path(path))
    new.rename(path)
    fsync(path.parent)
    shutil.rmtree(previous_path(path), ignore_errors=True)


def recover(path: Path) -> None:
    """Clean up after a killed writer of this folder; no other process may be writing it."""
    if previous_path(path).exists() and not path.exists():
        previous_path(path).rename(path)
    shutil.rmtree(previous_path(path), ignore_errors=True)
    shutil.rmtree(partial_path(path), ignore_errors=True)


def partial_path(path: Path) -> Path:
    """Return the staging path of a file or folder."""
    return path.with_name(f".{path.name}.partial")


def previous_path(path: Path) -> Path:
    """Return the path of the old folder while the new one takes its name."""
    return path.with_name(f".{path.name}.previous")


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def describe_file(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    # Large chunks: the hashing thread must take the GIL between two of them, which is slow during training.
    chunk = memoryview(bytearray(min(HASH_CHUNK, path.stat().st_size + 1)))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            digest.update(chunk[:count])
            size += count
    return {"bytes": size, "sha256": digest.hexdigest()}


def verify(path: Path, *needed: str) -> frozenset[str]:
    """Check every file of a folder against its manifest and return their names; an error names the first damaged one.

    The manifest must list the `needed` files.
    """
    with verify_while_reading(path, *needed) as names:
        return names


@contextlib.contextmanager
def verify_while_reading(path: Path, *needed: str) -> Iterator[frozenset[str]]:
    """Like `verify`, but hash large files while the block reads them; on exit all files are verified.

    The block must read large files in a way that is safe for damaged ones, and its result is valid only if the block
    exits without an error. An error about a damaged file replaces the error that it caused in the block.
    """
    manifest = read_json(path / MANIFEST)
    listed = manifest.get("files")
    if not isinstance(listed, dict) or not listed or len(manifest) > 1:
        raise damaged(path / MANIFEST, "not a list of files")
    if read_small_text(path / MANIFEST) != json_text(manifest):
        raise damaged(path / MANIFEST, "was modified after it was written")
    for name in (*listed, *needed):
        if not is_file_name(name):
            raise damaged(path / MANIFEST, f"lists {shown(name)}, which is not a file name")
        if name not in listed:
            raise damaged(path / name, "is not in the manifest")
        if not (path / name).is_file():
            raise damaged(path / name, "is missing")
    for name, expected in listed.items():
        if not isinstance(expected, dict) or expected.get("bytes") != (path / name).stat().st_size:
            raise damaged(path / name, "size differs from the manifest")
    large = {name for name, expected in listed.items() if expected["bytes"] > HASH_CHUNK}
    for name in sorted(listed.keys() - large):
        check_digest(path / name, listed[name])
    with ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="verify") as pool:
        checks = [pool.submit(check_digest, path / name, listed[name]) for name in sorted(large)]
        try:
            yield frozenset(listed)
        finally:
            for check in checks:
                check.result()


def check_digest(path: Path, expected: Any) -> None:
    """Raise an error if size or SHA-256 of a file differ from its manifest entry."""
    if describe_file(path) != expected:
        raise damaged(path, "SHA-256 differs from the manifest")


def replace_file(path: Path, text: str) -> None:
    """Replace a small text file atomically."""
    staging = partial_path(path)
    try:
        staging.write_text(text, encoding="utf-8")
        fsync(staging)
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def write_json(path: Path, values: Any) -> None:
    """Write indented JSON."""
    path.write_text(json_text(values), encoding="utf-8", newline="\n")


def json_text(values: Any) -> str:
    """Format values as `write_json` writes them."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in an untrusted JSON file."""
    try:
        values = parse_json(read_small_text(path))
        check_plain(values)
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise damaged(path, f"invalid JSON ({what})") from None
    if not isinstance(values, dict):
        raise damaged(path, "not a JSON object")
    return values


def read_small_text(path: Path) -> str:
    """Read a small untrusted text file."""
    try:
        return read_text(path, MAX_JSON_BYTES)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS:
            raise  # the file may be intact
        what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise damaged(path, what) from None


def damaged(path: Path, why: str) -> InputFileError:
    """Return the error for a damaged or invalid file."""
    return InputFileError(why, where=str(path), hint="the folder is damaged or invalid: copy it again, or use another")
