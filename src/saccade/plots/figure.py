"""Figures without global state or display, saved as PNG, SVG or PDF; labels are literal text in any script."""

from __future__ import annotations

import math
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade import messages
from saccade.errors import SaccadeError, not_written
from saccade.plots.fonts import choose_fonts, missing_fonts_message, without_glyph_warnings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
"""Formats of a plot by the suffix of its file."""

DOTS_PER_INCH = 300
MAX_PIXELS = 60_000_000  # of a PNG; a larger figure gets fewer dots per inch

# Text stays text in SVG, so that it can be searched, edited and shaped by the viewer; fonts are embedded in PDF.
SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "saccade", "pdf.fonttype": 42}
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Entries that are left out, so that equal figures give equal files."""

_saving = threading.Lock()  # the settings of matplotlib are global


def plot_format(path: str | Path) -> str:
    """Return the format of a plot by the suffix of its file; a device or pipe gets PNG."""
    file = Path(path)
    if file.exists() and not file.is_file() and not file.is_dir():
        return "png"
    if file.suffix.lower() not in FORMATS:
        raise SaccadeError(
            f"unknown plot format '{file.suffix}'" if file.suffix else "a plot needs a format",
            where=str(path),
            hint=f"end the file name in {valid_suffixes()}",
        )
    return FORMATS[file.suffix.lower()]


def valid_suffixes() -> str:
    """The suffixes of plots, as part of a sentence."""
    *first, last = FORMATS
    return f"{', '.join(first)} or {last}"


def new_figure(width: float, height: float, *, constrained: bool = True) -> Figure:
    """Return an empty figure, size in inches; outside pyplot, so that several threads can draw at the same time.

    A `constrained` layout fits axes and labels into the figure; without it the caller places the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08) if constrained else None
    figure = Figure(figsize=(width, height), dpi=resolution(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def resolution(width: float, height: float) -> float:
    """Return the dots per inch of a figure, size in inches."""
    return min(DOTS_PER_INCH, math.sqrt(MAX_PIXELS / (width * height)))


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format of the suffix; equal figures give equal files."""
    from matplotlib import rc_context

    kind = plot_format(path)
    set_fonts(figure, kind)
    with _saving, rc_context(SETTINGS), without_glyph_warnings():
        try:
            figure.savefig(path, format=kind, metadata=METADATA[kind])
        except OSError as error:
            raise not_written(path, error) from None


def set_fonts(figure: Figure, kind: str) -> None:
    """Set the fonts of all texts, and make them literal; warn once of characters that no font has.

    An SVG file has no glyphs, so its viewer needs the fonts.
    """
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    fonts = choose_fonts(text.get_text() for text in texts)
    families = [*fonts.families, "sans-serif"] if kind == "svg" else fonts.families
    for text in texts:
        text.set_fontfamily(families)
        # A piece may contain "$", which would start a formula.
        text.set_parse_math(False)
    if fonts.missing and kind != "svg":
        warn_once(missing_fonts_message(fonts.missing))


@cache
def warn_once(message: str) -> None:
    """Show a warning the first time only."""
    messages.warn(message)
