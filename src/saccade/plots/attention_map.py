"""Attention maps: attention weights as a heat map, in the terminal and as PNG.

Shapes: H heads, T target pieces, S source pieces.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError
from saccade.plots.figure import new_figure, save_figure
from saccade.plots.text_cells import cells, clip, clusters, pad_left, pad_right, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.image import AxesImage

Weights = npt.NDArray[np.floating[Any]]

SHADES = "·░▒▓█"
COLORS = (231, 189, 153, 111, 75, 68, 32, 26, 18)  # of the 256-color palette, white to dark blue
HEADER_HEIGHT = 14
MIN_LABEL = 6

COLOR_MAP = "Blues"
TITLE_FONT = 11.0
MAX_LABEL_LENGTH = 40
PANEL_INCHES = 0.9  # minimum width, for the title of a panel
POINTS_PER_INCH = 72
LETTER = 0.62  # mean letter width relative to the font size; also the font size relative to the cell


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
    terminal), they get narrower, then continue below in more bands. The last line is the scale.
    """
    matrix = checked(source, target, weights)
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
    lines.append(f"{margin}0 {scale} {matrix.max():.2f}")
    return "\n".join(line.rstrip() for line in lines)


def checked(source: Sequence[str], target: Sequence[str], weights: Weights) -> Weights:
    """The weights (T, S) as an array, with 0 for NaN and infinity; a shape that does not fit the pieces is an error."""
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.shape != (len(target), len(source)):
        raise SaccadeError(
            f"attention of shape {matrix.shape} for {len(target)} target and {len(source)} source pieces",
            hint="give one row of weights for each target piece and one column for each source piece",
        )
    if not matrix.size:
        raise SaccadeError(f"nothing to plot: {len(target)} target and {len(source)} source pieces")
    return np.nan_to_num(matrix, nan=0.0, posinf=0.0, neginf=0.0)


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
    """The shade of each weight, 0 to `count` - 1; the largest weight of the matrix has the darkest one."""
    strongest = matrix.max()
    scaled = np.clip(matrix / strongest, 0, 1) if strongest > 0 else np.zeros_like(matrix)
    return np.rint(scaled * (count - 1)).astype(np.int64)


def shade(level: int, cell_width: int, color: bool) -> str:
    """One cell of the map."""
    if color:
        return f"\x1b[48;5;{COLORS[level]}m{' ' * cell_width}\x1b[0m"
    # The lightest shade is one dot per cell, to guide the eye along the row.
    return SHADES[level] * cell_width if level else pad_right(SHADES[0], cell_width)


def plot_png(
    source: Sequence[str], target: Sequence[str], weights: Weights, path: str | Path, *, title: str | None = None
) -> None:
    """Plot one attention matrix (T, S) as a heat map, as large as its labels need."""
    matrix = checked(source, target, weights)
    # Smaller cells for long texts keep the figure below 40 inches.
    cell = min(0.3, 36 / max(matrix.shape))
    font = min(10.0, font_size(cell))
    width = max(cell * len(source) + label_inches(target, font) + 1.1, 3.0)
    height = cell * len(target) + label_inches(source, font) + 0.25
    heading = wrapped(title, width)
    figure = new_figure(width, height + heading.inches)
    axes = figure.add_subplot()
    image = heat_map(axes, matrix, strongest=float(matrix.max()), cell=cell)
    label_source(axes, source, font)
    label_target(axes, target, font)
    figure.suptitle(heading.text, fontsize=TITLE_FONT)
    bar = figure.colorbar(
        image, ax=axes, fraction=0.04, pad=0.02, aspect=18, shrink=min(1.0, 2.5 / (cell * len(target)))
    )
    plain_bar(bar)
    save_figure(figure, path)


def plot_heads_png(
    source: Sequence[str],
    target: Sequence[str],
    layers: Mapping[int, Weights],
    path: str | Path,
    *,
    title: str | None = None,
) -> None:
    """Plot one heat map per head, from the weights (H, T, S) of each layer: rows are layers, columns are heads.

    All panels share one scale, so that sharp and diffuse heads can be distinguished.
    """
    panels = {layer: [checked(source, target, head) for head in weights] for layer, weights in layers.items()}
    across, down = max((len(heads) for heads in panels.values()), default=0), len(panels)
    if not across:
        raise SaccadeError("nothing to plot: no layer has a head")
    longest = max(len(source), len(target))
    cell = max(PANEL_INCHES / longest, min(0.16, 3.2 / longest))
    labeled = cell >= 0.1
    font = min(7.0, font_size(cell))
    panel_width, panel_height = max(cell * len(source), PANEL_INCHES), cell * len(target)
    width = max(across * (panel_width + 0.15) + 0.9 + label_inches(target if labeled else (), font), 3.0)
    height = down * (panel_height + 0.35) + label_inches(source if labeled else (), font)
    heading = wrapped(title, width)
    figure = new_figure(width, height + heading.inches)
    strongest = max(float(head.max()) for heads in panels.values() for head in heads)
    grid = figure.subplots(down, across, squeeze=False)
    for row, (layer, heads) in enumerate(panels.items()):
        for column, axes in enumerate(grid[row]):
            if column >= len(heads):
                axes.set_axis_off()
                continue
            image = heat_map(axes, heads[column], strongest=strongest, cell=cell)
            label_source(axes, source if labeled and row == 0 else (), font)
            label_target(axes, target if labeled and column == 0 else (), font)
            axes.set_title(f"layer {layer}, head {column}", fontsize=7, pad=3)
    figure.suptitle(heading.text, fontsize=TITLE_FONT)
    bar = figure.colorbar(image, ax=grid, fraction=0.02, pad=0.01, aspect=25, shrink=min(1.0, 2.5 / height))
    plain_bar(bar)
    save_figure(figure, path)


def font_size(cell: float) -> float:
    """The font size, in points, of a label for a cell of that many inches."""
    return LETTER * POINTS_PER_INCH * cell


def label_inches(pieces: Sequence[str], font: float) -> float:
    """The approximate length of the longest label, in inches."""
    return LETTER * font / POINTS_PER_INCH * max((cells(label_of(piece)) for piece in pieces), default=0) + 0.15


def label_of(piece: str) -> str:
    """A piece as an axis label."""
    return clip(visible(piece), MAX_LABEL_LENGTH)


class Heading(NamedTuple):
    """A title broken into lines, and its height."""

    text: str
    inches: float


def wrapped(title: str | None, width: float) -> Heading:
    """Break a title into lines of at most `width` inches."""
    lines = textwrap.wrap(title or "", max(1, int(width * POINTS_PER_INCH / (LETTER * TITLE_FONT))))
    return Heading("\n".join(lines), (len(lines) * 1.3 * TITLE_FONT + 8) / POINTS_PER_INCH if lines else 0.0)


def heat_map(axes: Axes, matrix: Weights, *, strongest: float, cell: float) -> AxesImage:
    """Draw the matrix in squares of `cell` inches, white to blue, on a scale from 0 to `strongest`."""
    image = axes.imshow(matrix, cmap=COLOR_MAP, vmin=0, vmax=strongest or 1.0, aspect="equal", interpolation="nearest")
    if cell >= 0.1:
        axes.set_xticks(np.arange(matrix.shape[1] + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(matrix.shape[0] + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#e8e8e8", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_color("#b0b0b0")
    return image


def label_source(axes: Axes, source: Sequence[str], font: float) -> None:
    """Label the columns with the source pieces, vertically."""
    axes.set_xticks(range(len(source)), [label_of(piece) for piece in source], rotation=90, fontsize=font)
    axes.tick_params(axis="x", top=False, bottom=False, labeltop=True, labelbottom=False)


def label_target(axes: Axes, target: Sequence[str], font: float) -> None:
    """Label the rows with the target pieces."""
    axes.set_yticks(range(len(target)), [label_of(piece) for piece in target], fontsize=font)


def plain_bar(bar: Colorbar) -> None:
    """Format a color bar without outline and ticks."""
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=0)
