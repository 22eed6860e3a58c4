"""Attention maps: attention weights as heat maps, for a whole model, for each head, or for several models.

Shapes: H heads, T target pieces, S source pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from saccade.errors import SaccadeError
from saccade.plots.attention_weights import Weights
from saccade.plots.heat_map_grid import HeatMap, plot_heat_maps

MAX_INCHES = 36.0  # of the cells of one map
LARGE_CELL, MAX_PIECES_LARGE = 0.36, 16  # with the weights written in them
NORMAL_CELL = 0.25
HEAD_INCHES, HEAD_CELL = (0.9, 3.2), 0.16  # the smallest and the largest panel of a head
MODEL_INCHES, MODEL_CELL = 5.0, 0.2
HEAD_LABEL_LENGTH, MODEL_LABEL_LENGTH = 14, 20
MAX_COLUMNS, USUAL_COLUMNS = 4, 3


def plot_attention(
    source: Sequence[str],
    target: Sequence[str],
    weights: Weights,
    path: str | Path,
    *,
    title: Mapping[str, str] | None = None,
) -> None:
    """Plot one attention matrix (T, S) as a heat map, as large as its labels need, as PNG, SVG or PDF by suffix."""
    longest = max(len(source), len(target), 1)
    cell = LARGE_CELL if longest <= MAX_PIECES_LARGE else min(NORMAL_CELL, MAX_INCHES / longest)
    plot_heat_maps([[HeatMap(source, target, weights)]], path, cell=cell, max_font=10.0, title=title)


def plot_heads(
    source: Sequence[str],
    target: Sequence[str],
    layers: Mapping[int, Weights],
    path: str | Path,
    *,
    title: Mapping[str, str] | None = None,
) -> None:
    """Plot one heat map per head, from the weights (H, T, S) of each layer: rows are layers, columns are heads."""
    rows = [
        [HeatMap(source, target, head, title=f"layer {layer}, head {index}") for index, head in enumerate(heads)]
        for layer, heads in layers.items()
        if len(heads)
    ]
    longest = max(len(source), len(target), 1)
    smallest, largest = HEAD_INCHES
    cell = max(smallest / longest, min(HEAD_CELL, largest / longest))
    plot_heat_maps(rows, path, cell=cell, max_font=7.0, title=title, label_length=HEAD_LABEL_LENGTH)


def plot_models(panels: Sequence[HeatMap], path: str | Path, *, title: Mapping[str, str] | None = None) -> None:
    """Plot one heat map per model in a grid whose last row is as full as possible."""
    if not panels:
        raise SaccadeError("no model has an alignment to plot", hint="compare models that have cross-attention")
    columns = column_count(len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    longest = max(max(len(panel.source), len(panel.target), 1) for panel in panels)
    cell = min(MODEL_CELL, MODEL_INCHES / longest)
    plot_heat_maps(rows, path, cell=cell, max_font=8.0, title=title, label_length=MODEL_LABEL_LENGTH)


def column_count(panels: int) -> int:
    """Return the number of columns with the fewest empty panels in the last row, near the usual number."""
    if panels <= USUAL_COLUMNS:
        return panels
    return min(
        range(2, MAX_COLUMNS + 1), key=lambda columns: (-panels % columns, abs(columns - USUAL_COLUMNS), -columns)
    )
