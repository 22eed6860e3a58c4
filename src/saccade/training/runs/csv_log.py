"""CSV files to which a run appends one row per logged step."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError


def write_row(path: Path, columns: Sequence[str], values: dict[str, Any]) -> None:
    """Append one row to a CSV file, with its header if it is new."""
    try:
        new = not path.exists() or path.stat().st_size == 0
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(values)
    except OSError as error:
        raise unwritable(path, error) from None


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; a malformed file gives no rows, because a plot must not stop a run."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        try:
            rows = list(csv.DictReader(file))
        except csv.Error:
            return []
    return [{name: cell for name, cell in row.items() if name is not None} for row in rows]


def unwritable(path: Path, error: OSError) -> SaccadeError:
    """Return the error for a log file that cannot be written."""
    return SaccadeError(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        hint="free some space, then continue: saccade train --resume RUN",
    )
