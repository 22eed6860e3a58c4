"""Colors and markers of all plots.

Lines use the palette of Okabe and Ito 2008, which readers with a color vision deficiency can distinguish; markers
differ too. Attention weights go from white to dark blue.
"""

from __future__ import annotations

from typing import Any

BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY_BLUE, ORANGE, BLACK, BROWN, GRAY = "#56b4e9", "#e69f00", "#000000", "#8c6d31", "#7f7f7f"

LINE_COLORS = (BLUE, VERMILLION, GREEN, PURPLE, SKY_BLUE, ORANGE, BLACK, BROWN, GRAY)
MARKERS = "osD^vPX*h"

WEIGHTS_COLOR_MAP = "Blues"  # of matplotlib: white to dark blue
HIGHLIGHT_COLOR = VERMILLION  # for a mark on a blue heat map
NEUTRAL_COLOR = "#5a5a5a"  # for guide lines and quantities without a model
GRID_COLOR = "#e8e8e8"
BORDER_COLOR = "#b0b0b0"


def line_style(index: int) -> dict[str, Any]:
    """Color and marker of line number `index`, as keyword arguments of matplotlib."""
    return {"color": LINE_COLORS[index % len(LINE_COLORS)], "marker": MARKERS[index % len(MARKERS)]}
