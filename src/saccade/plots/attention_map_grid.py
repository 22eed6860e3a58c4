"""The alignments of several models for one sentence, in one plot.

Shapes: T target pieces, S source pieces; each model has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.errors import SaccadeError
from saccade.plots.attention_map import (
    POINTS_PER_INCH,
    TITLE_FONT,
    Weights,
    checked,
    font_size,
    heat_map,
    label_inches,
    label_source,
    label_target,
    plain_bar,
    wrapped,
)
from saccade.plots.figure import new_figure, save_figure

COLUMNS = 3
MAX_CELL = 0.22  # inches
MAX_PANEL = 5.0
NAME_FONT = 10.0


class Panel(NamedTuple):
    """The alignment of one model."""

    name: str
    source: Sequence[str]
    target: Sequence[str]
    weights: Weights  # (T, S)


def plot_attention_grid(panels: Sequence[Panel], path: str | Path, *, title: str | None = None) -> None:
    """Plot one heat map per model, all on one scale; dark means large weights."""
    if not panels:
        raise SaccadeError("no model has an alignment to plot")
    matrices = [checked(panel.source, panel.target, panel.weights) for panel in panels]
    longest = max(max(matrix.shape) for matrix in matrices)
    cell = min(MAX_CELL, MAX_PANEL / longest)
    font = min(8.0, font_size(cell))
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    names = 1.6 * NAME_FONT / POINTS_PER_INCH
    panel_width = max(cell * max(matrix.shape[1] for matrix in matrices), 1.2)
    panel_height = cell * max(matrix.shape[0] for matrix in matrices)
    labels_beside = max(label_inches(panel.target, font) for panel in panels)
    labels_above = max(label_inches(panel.source, font) for panel in panels)
    width = max(columns * (panel_width + labels_beside + 0.2) + 0.8, 4.0)
    heading = wrapped(title, width)
    height = rows * (panel_height + labels_above + names + 0.2)
    figure = new_figure(width, height + heading.inches)
    strongest = max(float(matrix.max()) for matrix in matrices)
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel, matrix, axes in zip(panels, matrices, grid.flat, strict=False):
        image = heat_map(axes, matrix, strongest=strongest, cell=cell)
        label_source(axes, panel.source, font)
        label_target(axes, panel.target, font)
        axes.set_title(panel.name, fontsize=NAME_FONT, fontweight="bold", pad=4)
        axes.set_anchor("N")  # align the tops of a row
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(heading.text, fontsize=TITLE_FONT)
    shrink = min(1.0, 2.5 / height)
    bar = figure.colorbar(image, ax=grid, fraction=0.02, pad=0.01, aspect=25, shrink=shrink, panchor=False)
    plain_bar(bar)
    save_figure(figure, path)
