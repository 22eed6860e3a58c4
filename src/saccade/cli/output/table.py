"""Text tables for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Return columns separated by two spaces, under a header row; those named in `right` are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, rows[0], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
