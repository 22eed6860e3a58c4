from __future__ import annotations

import re
from pathlib import Path

import saccade
from saccade.plots.colors import LINE_COLORS, MARKERS, line_style


def test_lines_differ_in_color_and_marker() -> None:
    styles = [tuple(line_style(index).values()) for index in range(len(LINE_COLORS))]
    assert len(set(LINE_COLORS)) == len(set(MARKERS)) == len(set(styles)) == len(LINE_COLORS)
    assert line_style(len(LINE_COLORS)) == line_style(0)


def test_plots_take_their_colors_from_the_palette() -> None:
    package = Path(saccade.__file__).parent
    modules = {*(package / "plots").glob("*.py"), package / "studies" / "complexity" / "plot.py"}
    others = {path.name for path in modules if re.search(r'"#[0-9a-f]{6}"', path.read_text(encoding="utf-8"))}
    assert others == {"colors.py"}
