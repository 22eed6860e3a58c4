"""SHA-256 of the C sources: a shared library carries the hash of the sources that it was built from."""

from __future__ import annotations

import hashlib
from pathlib import Path


def source_hash(folder: Path) -> str:
    """The hash of all C files and headers in a folder, names and contents."""
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
