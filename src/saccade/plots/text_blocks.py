"""Text in figures: wrapping, measured sizes, and isolation of right-to-left text from its neighbors."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from saccade.plots.figure import new_figure
from saccade.plots.fonts import choose_fonts, without_glyph_warnings
from saccade.plots.text_cells import ELLIPSIS, cells, clip, clusters, visible, visible_character

POINTS_PER_INCH = 72
LETTER = 0.62  # upper bound of the mean letter width relative to the font size
LINE_SPACING = 1.3  # relative to the font size
MAX_LABEL_LENGTH = 40

FIRST_STRONG_ISOLATE, POP_ISOLATE = "\u2068", "\u2069"


class TextSize(NamedTuple):
    """The size of the largest of some texts, in inches."""

    width: float
    height: float


def label_of(piece: str, length: int = MAX_LABEL_LENGTH) -> str:
    """Return a piece as an axis label: visible, shortened, isolated if it is written from right to left."""
    return isolate_right_to_left(clip(visible(piece), length))


def isolate_right_to_left(text: str) -> str:
    """Isolate a text with letters that are written from right to left, so that its neighbors keep their order."""
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text):
        return f"{FIRST_STRONG_ISOLATE}{text}{POP_ISOLATE}"
    return text


def measure(labels: Iterable[str], font: float) -> TextSize:
    """Measure labels in a font of that many points, as they will be drawn."""
    from matplotlib.text import Text

    texts = [text for text in dict.fromkeys(labels) if text]
    if not texts:
        return TextSize(0.0, 0.0)
    figure = new_figure(1, 1, constrained=False)
    families = choose_fonts(texts).families
    width = height = 0.0
    for text in texts:
        artist = Text(text=text, fontsize=font, fontfamily=families, parse_math=False)
        artist.set_figure(figure)
        with without_glyph_warnings():
            box = artist.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
        width, height = max(width, box.width / figure.dpi), max(height, box.height / figure.dpi)
    return TextSize(width, height)


def wrap(text: str, inches: float, font: float, max_lines: int) -> list[str]:
    """Break a text into at most `max_lines` lines of that width; the last one is shortened if there is more.

    Control characters are replaced, as in labels: an SVG file cannot contain them.
    """
    width = max(4, int(inches * POINTS_PER_INCH / (LETTER * font)))
    lines: list[str] = []
    for word in ("".join(map(visible_character, word)) for word in text.split()):
        if lines and cells(lines[-1]) + 1 + cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chunks(word, width)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], clip(f"{lines[max_lines - 1]} {ELLIPSIS}", width)]
    return lines


def chunks(word: str, width: int) -> list[str]:
    """Split a word into parts of at most `width` cells; scripts without spaces have long words."""
    parts = [""]
    for cluster in clusters(word):
        if cells(parts[-1] + cluster) > width and parts[-1]:
            parts.append("")
        parts[-1] += cluster
    return parts


def line_inches(lines: int, font: float) -> float:
    """The height of lines of text."""
    return lines * LINE_SPACING * font / POINTS_PER_INCH


def wrapped_title(title: Mapping[str, str], inches: float, font: float, max_lines: int) -> list[str]:
    """Wrap the texts of a title, each to at most `max_lines` lines; the first one begins with its name."""
    lines: list[str] = []
    for name, text in title.items():
        prefix = f"{name}: "
        parts = wrap(text, inches - LETTER * font * len(prefix) / POINTS_PER_INCH, font, max_lines)
        lines += [("" if index else prefix) + isolate_right_to_left(part) for index, part in enumerate(parts or [""])]
    return lines
