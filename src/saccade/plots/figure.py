"""Figures without global state or display; labels are literal text in any script."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150

# Tried in this order for each glyph; DejaVu comes with matplotlib, the others are used if installed.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Emoji",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Arial Unicode MS",
)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, size in inches; outside pyplot, so that several threads can draw at the same time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG; text is literal, and a glyph that no font has becomes a box without a warning."""
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text

    installed = set(fontManager.get_font_names())
    family = [name for name in FONTS if name in installed]
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_fontfamily(family)
        # A piece may contain "$", which would start a formula.
        text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        try:
            figure.savefig(path, format="png")
        except OSError as error:
            raise SaccadeError(f"cannot be written: {error.strerror}", where=str(path)) from None
