"""A grid of heat maps of attention weights, with equal cells and one color scale from 0 to 1.

Shapes: T target pieces, S source pieces; each heat map has its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from saccade.errors import SaccadeError
from saccade.plots.attention_weights import Weights, check_weights, uniform_text
from saccade.plots.colors import BORDER_COLOR, GRID_COLOR, HIGHLIGHT_COLOR, WEIGHTS_COLOR_MAP
from saccade.plots.figure import new_figure, save_figure
from saccade.plots.text_blocks import (
    LETTER,
    POINTS_PER_INCH,
    isolate_right_to_left,
    label_of,
    line_inches,
    measure,
    wrap,
    wrapped_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_FONT, PANEL_TITLE_FONT, CAPTION_FONT, AXIS_FONT, SCALE_FONT = 11.0, 9.0, 7.5, 8.0, 7.0
MIN_LABEL_FONT = 4.5  # smaller labels are left out, one in two, three … remains
MAX_TITLE_LINES = 3  # for each text of the title
MAX_CAPTION_LINES = 3
BOLD = 1.2  # upper bound of the width of bold text relative to normal text

PAD = 0.12  # inches around the figure, and between labels and cells
GAP = 0.25  # between panels
AXIS_TITLE = 0.2  # height of "source", width of "output"
SCALE_SPACE, SCALE_WIDTH, MIN_SCALE_HEIGHT, MAX_SCALE_HEIGHT = 1.15, 0.14, 0.8, 2.5
SCALE_NOTE = 0.35  # below the color scale
MIN_WIDTH = 3.6
LINED_CELL = 0.09  # smaller cells have no lines between them
NUMBERED_CELL = 0.33  # smaller cells have no weights written in them
MIN_NUMBER = 0.005  # smaller weights are not written
UNIFORM_MARK = "uniform"  # id of the marks in an SVG file
DARK = 0.6  # weights from here on are written in white


@dataclass(frozen=True)
class HeatMap:
    """One panel: weights (T, S) with their pieces."""

    source: Sequence[str]
    target: Sequence[str]
    weights: Weights
    title: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Layout:
    """Positions in inches from the top left corner of the figure."""

    cell: float
    font: float
    tick_step: int
    label_length: int
    title: list[str]
    captions: list[list[list[str]]]  # lines of each panel of each row
    caption_lefts: list[float]  # of each column
    caption_tops: list[float]  # of each row; the titles of panels are above the captions
    lefts: list[float]  # of the cells of each column
    tops: list[float]  # of the cells of each row
    scale_height: float
    width: float
    height: float


def plot_heat_maps(
    rows: Sequence[Sequence[HeatMap]],
    path: str | Path,
    *,
    cell: float,
    max_font: float,
    title: Mapping[str, str] | None = None,
    label_length: int = 40,
) -> None:
    """Plot rows of heat maps; `cell` is the cell size in inches, `title` maps a label such as "source" to its text."""
    matrices = [[check_weights(panel.source, panel.target, panel.weights) for panel in row] for row in rows]
    if not any(matrices):
        raise SaccadeError("nothing to plot: there is no heat map", hint="give the weights of at least one head")
    layout = arrange(rows, cell, max_font, title or {}, label_length)
    figure = new_figure(layout.width, layout.height, constrained=False)
    for row, (panels, top) in enumerate(zip(rows, layout.tops, strict=True)):
        for column, (panel, left) in enumerate(zip(panels, layout.lefts, strict=False)):
            axes = place_axes(figure, left, top, cell * len(panel.source), cell * len(panel.target))
            draw_cells(axes, matrices[row][column], cell)
            label_axes(axes, panel, layout)
            if row == 0:
                axes.set_xlabel("source", fontsize=AXIS_FONT)
            if column == 0:
                axes.set_ylabel("output", fontsize=AXIS_FONT)
            write_heading(figure, panel, layout, row, column)
    for index, line in enumerate(layout.title):
        place_text(figure, line, PAD, PAD + line_inches(index, TITLE_FONT), TITLE_FONT)
    draw_scale(figure, layout, {len(panel.source) for panels in rows for panel in panels})
    save_figure(figure, path)


def arrange(
    rows: Sequence[Sequence[HeatMap]], cell: float, max_font: float, title: Mapping[str, str], label_length: int
) -> Layout:
    """Compute the layout: every column is as wide and every row as high as its largest panel."""
    font = max(MIN_LABEL_FONT, min(max_font, font_for(cell)))
    step = max(1, math.ceil(font / font_for(cell)))
    columns = [[row[index] for row in rows if index < len(row)] for index in range(max(map(len, rows)))]

    def label_width(pieces: Iterable[str]) -> float:
        return measure((label_of(piece, label_length) for piece in pieces), font).width + PAD

    lefts: list[float] = []
    caption_lefts: list[float] = []
    caption_widths: list[float] = []
    x = PAD + AXIS_TITLE
    for panels in columns:
        caption_lefts.append(x)
        x += label_width(piece for panel in panels for piece in panel.target)
        lefts.append(x)
        x += max(cell * len(panel.source) for panel in panels)
        titles = BOLD * measure((panel.title for panel in panels), PANEL_TITLE_FONT).width
        x = max(x, caption_lefts[-1] + titles)
        caption_widths.append(x - caption_lefts[-1])
        x += GAP
    width = max(x - GAP + SCALE_SPACE, MIN_WIDTH)
    title_lines = wrapped_title(title, width - 2 * PAD, TITLE_FONT, MAX_TITLE_LINES)
    y = PAD + line_inches(len(title_lines), TITLE_FONT) + (PAD if title_lines else 0)
    tops: list[float] = []
    captions: list[list[list[str]]] = []
    caption_tops: list[float] = []
    for index, row in enumerate(rows):
        lines = [
            [isolate_right_to_left(line) for line in wrap(panel.caption, room, CAPTION_FONT, MAX_CAPTION_LINES)]
            for panel, room in zip(row, caption_widths, strict=False)
        ]
        captions.append(lines)
        y += line_inches(int(any(panel.title for panel in row)), PANEL_TITLE_FONT)
        caption_tops.append(y)
        y += line_inches(max(map(len, lines)), CAPTION_FONT) + (AXIS_TITLE if index == 0 else 0)
        y += label_width(piece for panel in row for piece in panel.source)
        tops.append(y)
        y += max(cell * len(panel.target) for panel in row) + GAP
    scale_height = min(MAX_SCALE_HEIGHT, max(MIN_SCALE_HEIGHT, y - GAP - tops[0]))
    return Layout(
        cell=cell,
        font=font,
        tick_step=step,
        label_length=label_length,
        title=title_lines,
        captions=captions,
        caption_lefts=caption_lefts,
        caption_tops=caption_tops,
        lefts=lefts,
        tops=tops,
        scale_height=scale_height,
        width=width,
        height=max(y - GAP + PAD, tops[0] + scale_height + SCALE_NOTE + PAD),
    )


def font_for(cell: float) -> float:
    """The font size, in points, of a label for a cell of that many inches."""
    return LETTER * POINTS_PER_INCH * cell


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the top left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def place_text(
    figure: Figure, text: str, left: float, top: float, font: float, *, color: str = "black", weight: str = "normal"
) -> None:
    """Write a line of text at a position in inches from the top left corner."""
    across, down = figure.get_size_inches()
    figure.text(left / across, 1 - top / down, text, fontsize=font, va="top", color=color, fontweight=weight)


def draw_cells(axes: Axes, matrix: Weights, cell: float) -> None:
    """Draw the matrix as colored squares; large cells contain the weight."""
    axes.imshow(matrix, cmap=WEIGHTS_COLOR_MAP, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if cell >= LINED_CELL:
        axes.set_xticks(np.arange(matrix.shape[1] + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(matrix.shape[0] + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=GRID_COLOR, linewidth=0.5)
    if cell >= NUMBERED_CELL:
        for (row, column), weight in np.ndenumerate(matrix):
            if weight >= MIN_NUMBER:
                color = "white" if weight >= DARK else "black"
                axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=SCALE_FONT, color=color)
    for spine in axes.spines.values():
        spine.set_color(BORDER_COLOR)


def label_axes(axes: Axes, panel: HeatMap, layout: Layout) -> None:
    """Label columns with source pieces, vertically, and rows with target pieces; with small cells only some of them."""
    for axis, pieces in (("x", panel.source), ("y", panel.target)):
        positions = range(0, len(pieces), layout.tick_step)
        labels = [label_of(pieces[index], layout.label_length) for index in positions]
        set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
        set_ticks(positions, labels, fontsize=layout.font, rotation=90 if axis == "x" else 0)
    axes.xaxis.set_label_position("top")
    axes.tick_params(which="both", length=0)
    axes.tick_params(axis="x", top=False, bottom=False, labeltop=True, labelbottom=False)


def write_heading(figure: Figure, panel: HeatMap, layout: Layout, row: int, column: int) -> None:
    """Write the title and the caption of a panel above its labels."""
    left, top = layout.caption_lefts[column], layout.caption_tops[row]
    place_text(figure, panel.title, left, top - line_inches(1, PANEL_TITLE_FONT), PANEL_TITLE_FONT, weight="bold")
    for index, line in enumerate(layout.captions[row][column]):
        place_text(figure, line, left, top + line_inches(index, CAPTION_FONT), CAPTION_FONT)


def draw_scale(figure: Figure, layout: Layout, source_lengths: set[int]) -> None:
    """Draw the color scale from 0 to 1 on the right, with a mark at each uniform weight 1/S."""
    left, top = layout.width - SCALE_SPACE + GAP, layout.tops[0]
    axes = place_axes(figure, left, top, SCALE_WIDTH, layout.scale_height)
    axes.imshow(
        np.linspace(1, 0, 256)[:, None], cmap=WEIGHTS_COLOR_MAP, vmin=0, vmax=1, aspect="auto", extent=(0, 1, 0, 1)
    )
    axes.set_xticks([])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=SCALE_FONT)
    axes.yaxis.tick_right()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_color(BORDER_COLOR)
    for length in source_lengths:
        axes.axhline(1 / length, color=HIGHLIGHT_COLOR, linewidth=1.5, gid=UNIFORM_MARK)
    note_top = top + layout.scale_height + 0.06
    for index, line in enumerate(uniform_text(source_lengths).split(" ", maxsplit=1)):
        place_text(figure, line, left, note_top + line_inches(index, SCALE_FONT), SCALE_FONT, color=HIGHLIGHT_COLOR)
