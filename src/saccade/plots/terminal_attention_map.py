"""Attention maps in the terminal: attention weights as shades of gray or blue.

Shapes: T target pieces, S source pieces.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from saccade.plots.attention_weights import Weights, check_weights, uniform_text
from saccade.plots.text_cells import cells, clip, clusters, pad_left, pad_right, visible

SHADES = "·░▒▓█"
COLORS = (231, 189, 153, 111, 75, 68, 32, 26, 18)  # of the 256-color palette, white to dark blue
HEADER_HEIGHT = 14
MIN_LABEL = 6


@dataclass(frozen=True)
class Layout:
    """The layout of a map in the terminal."""

    label_width: int
    cell_width: int
    band: int  # source pieces per band


def draw_terminal(
    source: Sequence[str],
    target: Sequence[str],
    weights: Weights,
    *,
    width: int | None = None,
    color: bool = False,
) -> str:
    """Draw weights (T, S) as text: one row per target piece, one column per source piece, dark for large weights.

    Source pieces are written vertically above their columns. If the columns exceed the width (by default that of the
    terminal), they get narrower, then continue below in more bands. The last line is the scale, from 0 to 1, with the
    largest weight and the uniform weight 1/S: a map without weights well above it has no structure.
    """
    matrix = check_weights(source, target, weights)
    layout = fit(source, target, shutil.get_terminal_size().columns if width is None else width)
    labels = [pad_left(clip(visible(piece), layout.label_width), layout.label_width) for piece in target]
    shade_count = len(COLORS) if color else len(SHADES)
    levels = shade_levels(matrix, shade_count)
    margin = " " * (layout.label_width + 1)
    lines: list[str] = []
    for start in range(0, len(source), layout.band):
        columns = slice(start, start + layout.band)
        if start:
            lines.append("")
        lines += [margin + line for line in header(source[columns], layout.cell_width)]
        lines += [
            f"{label} {''.join(shade(level, layout.cell_width, color) for level in row[columns])}"
            for label, row in zip(labels, levels, strict=True)
        ]
    scale = "".join(shade(level, 1, color) for level in range(shade_count))
    lines.append(f"{margin}0 {scale} 1   largest {matrix.max():.2f}, {uniform_text([len(source)])}")
    return "\n".join(line.rstrip() for line in lines)


def fit(source: Sequence[str], target: Sequence[str], width: int) -> Layout:
    """The widest columns that fit one band, or else the smallest number of bands."""
    longest = max(cells(visible(piece)) for piece in target)
    label_width = min(longest, max(MIN_LABEL, width // 3))
    available = max(width - label_width - 1, 2)
    wide = any(cells(cluster) > 1 for piece in source for cluster in clusters(visible(piece)))
    if not wide and available // 2 < len(source) <= available:
        return Layout(label_width, cell_width=1, band=len(source))
    bands = -(-len(source) // (available // 2))
    return Layout(label_width, cell_width=2, band=-(-len(source) // bands))


def header(pieces: Sequence[str], cell_width: int) -> list[str]:
    """The pieces written vertically, one column each, aligned at the bottom."""
    letters = [vertical(piece) for piece in pieces]
    height = max(len(column) for column in letters)
    columns = [[""] * (height - len(column)) + column for column in letters]
    return ["".join(pad_right(column[line], cell_width) for column in columns) for line in range(height)]


def vertical(piece: str) -> list[str]:
    """The letters of a piece from top to bottom, shortened if there are too many."""
    letters = clusters(visible(piece))
    return letters if len(letters) <= HEADER_HEIGHT else [*letters[: HEADER_HEIGHT - 1], "⋮"]


def shade_levels(matrix: Weights, count: int) -> npt.NDArray[np.int64]:
    """The shade of each weight, 0 to `count` - 1, on a fixed scale: weight 1 has the darkest one."""
    return np.rint(np.clip(matrix, 0, 1) * (count - 1)).astype(np.int64)


def shade(level: int, cell_width: int, color: bool) -> str:
    """One cell of the map."""
    if color:
        return f"\x1b[48;5;{COLORS[level]}m{' ' * cell_width}\x1b[0m"
    # The lightest shade is one dot per cell, to guide the eye along the row.
    return SHADES[level] * cell_width if level else pad_right(SHADES[0], cell_width)
