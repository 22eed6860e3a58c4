"""CSV files to which a run appends one row per logged step."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def append_row(path: Path, columns: Sequence[str], values: Mapping[str, Any]) -> None:
    """Append one row to a CSV file, with its header if it is new."""
    row = io.StringIO(newline="")
    writer = csv.DictWriter(row, columns, restval="", extrasaction="ignore")
    if not path.exists() or path.stat().st_size == 0:
        writer.writeheader()
    writer.writerow(values)
    append_bytes(path, row.getvalue().encode("utf-8"))


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file in one write; after a failure, such as a full disk, the file is as before."""
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        written = file.write(data)
        if written < len(data):
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; a malformed file gives no rows, because a plot must not stop a run."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        try:
            rows = list(csv.DictReader(file))
        except csv.Error:
            return []
    return [{name: cell for name, cell in row.items() if name is not None} for row in rows]
