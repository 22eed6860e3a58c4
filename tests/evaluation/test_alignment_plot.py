from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.errors import SaccadeError
from saccade.plots.attention_map import COLORS, SHADES, draw_terminal, plot_heads_png, plot_png
from saccade.plots.text_cells import cells

SOURCE = ["the", "big", "cat", "sleeps", "."]
TARGET = ["die", "Katze", "schläft", "."]
WEIGHTS = np.array(
    [
        [0.60, 0.10, 0.10, 0.10, 0.10],
        [0.02, 0.30, 0.66, 0.01, 0.01],
        [0.00, 0.00, 0.05, 0.95, 0.00],
        [0.20, 0.20, 0.20, 0.20, 0.20],
    ]
)


def body(drawing: str, rows: int) -> list[str]:
    """The rows of the last band, without header and legend."""
    return drawing.splitlines()[-1 - rows : -1]


def test_one_row_a_target_piece_and_the_strongest_cell_is_the_darkest() -> None:
    drawing = draw_terminal(SOURCE, TARGET, WEIGHTS, width=80, color=False)
    assert len(drawing.splitlines()) == len("sleeps") + len(TARGET) + 1
    rows = body(drawing, len(TARGET))
    start = len("schläft") + 1
    assert [row[:start].strip() for row in rows] == TARGET
    shades = [[row.ljust(80)[start + 2 * column] for column in range(len(SOURCE))] for row in rows]
    expected = [[SHADES[round(weight / 0.95 * 4)] for weight in row] for row in WEIGHTS]
    assert shades == expected
    assert "".join(rows).count(SHADES[-1]) == 2  # one cell, two characters wide
    assert drawing.splitlines()[-1].strip() == "0 ·░▒▓█ 0.95"


def test_source_pieces_can_be_read_downwards_above_their_columns() -> None:
    header = draw_terminal(SOURCE, TARGET, WEIGHTS, width=80).splitlines()[: len("sleeps")]
    start = len("schläft") + 1
    for column, piece in enumerate(SOURCE):
        assert "".join(line.ljust(80)[start + 2 * column] for line in header).strip() == piece


def test_color_paints_the_strongest_cell_in_the_darkest_color() -> None:
    drawing = draw_terminal(SOURCE, TARGET, WEIGHTS, width=80, color=True)
    painted = [re.findall(r"\x1b\[48;5;(\d+)m  \x1b\[0m", row) for row in body(drawing, len(TARGET))]
    assert [len(row) for row in painted] == [len(SOURCE)] * len(TARGET)
    levels = np.array([[COLORS.index(int(color)) for color in row] for row in painted])
    assert np.unravel_index(levels.argmax(), levels.shape) == (2, 3)
    assert levels[2, 3] == len(COLORS) - 1
    assert levels[2, 0] == 0


@pytest.mark.parametrize("width", [1, 10, 14, 20, 30, 120])
@pytest.mark.parametrize("source", [SOURCE * 4, ["我", "喜欢", "猫"], ["e\u0301te\u0301", "x"]])
def test_no_line_is_wider_than_the_terminal(width: int, source: list[str]) -> None:
    weights = np.full((len(TARGET), len(source)), 1 / len(source))
    lines = draw_terminal(source, TARGET, weights, width=width).splitlines()
    smallest = 6 + 1 + 2  # a short label and one column
    assert max(cells(line) for line in lines[:-1]) <= max(width, smallest)


def test_narrow_terminals_get_narrow_columns_then_bands() -> None:
    long, weights = SOURCE * 4, np.eye(4, 20)
    assert len(draw_terminal(long, TARGET, weights, width=60).splitlines()) == 6 + 4 + 1
    narrow = draw_terminal(long, TARGET, weights, width=30)
    assert len(narrow.splitlines()) == 6 + 4 + 1
    assert body(narrow, 4)[0] == "    die █" + "·" * 19
    banded = draw_terminal(long, TARGET, weights, width=26).splitlines()
    assert sum(line.lstrip().startswith("Katze") for line in banded) == 3
    assert sum(line.count(SHADES[-1] * 2) for line in banded) == 4


def test_wide_letters_keep_the_columns_in_line() -> None:
    drawing = draw_terminal(["我", "x"], ["I", "猫"], np.eye(2), width=40)
    assert drawing.splitlines() == ["   我x", " I ██·", "猫 · ██", "   0 ·░▒▓█ 1.00"]


def test_the_terminal_sets_the_default_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "26")
    assert draw_terminal(SOURCE * 4, TARGET, np.eye(4, 20)) == draw_terminal(
        SOURCE * 4, TARGET, np.eye(4, 20), width=26
    )


def test_weights_without_any_are_light_and_gaps_are_zero() -> None:
    assert "█" not in body(draw_terminal(["a"], ["b"], np.zeros((1, 1)), width=80), 1)[0]
    assert body(draw_terminal(["a", "c"], ["b"], np.array([[np.nan, 0.5]]), width=80), 1) == ["b · ██"]


def test_control_characters_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in draw_terminal(["\x1b[2J"], ["\x1b]0;x\x07"], np.ones((1, 1)), width=80)


def test_weights_of_other_sequences_are_refused() -> None:
    with pytest.raises(SaccadeError, match=r"\(4, 5\) .*4 target .*2 source"):
        draw_terminal(["a", "b"], TARGET, WEIGHTS)
    with pytest.raises(SaccadeError, match=r"\b0 "):
        draw_terminal([], TARGET, np.zeros((4, 0)))


def opened(path: Path) -> Image.Image:
    """The picture, after a check of its header and size."""
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 2000
    return Image.open(path).convert("RGB")


def test_the_heat_map_is_dark_only_at_the_strongest_weight(tmp_path: Path) -> None:
    plot_png(SOURCE, TARGET, WEIGHTS, tmp_path / "a.png", title="attention")
    pixels = np.asarray(opened(tmp_path / "a.png")).astype(int)
    darkest = (pixels == (8, 48, 107)).all(axis=-1)  # the end of the color map
    columns = np.flatnonzero(darkest.sum(axis=0) > 20)  # the scale at the side is dark for a few pixels only
    rows = np.flatnonzero(darkest[:, columns].all(axis=1))
    assert 30 < len(columns) < 60
    assert abs(len(columns) - len(rows)) <= 2
    assert np.ptp(columns) + 1 == len(columns)
    assert np.ptp(rows) + 1 == len(rows)


def test_any_labels_can_be_plotted_and_the_picture_grows_with_them(tmp_path: Path) -> None:
    odd = ["$5", "$", "猫", "\U0001f600", "", "a" * 300, "{x}^_\\frac"]
    plot_png(odd, ["$x_"], np.full((1, 7), 1 / 7), tmp_path / "odd.png", title="costs $5 or $6, " * 10)
    plot_png(["a"], ["b"], np.ones((1, 1)), tmp_path / "small.png")
    small, large = opened(tmp_path / "small.png"), opened(tmp_path / "odd.png")
    assert large.width > small.width
    assert large.height > small.height


def test_heads_have_a_panel_each_and_layers_may_differ(tmp_path: Path) -> None:
    one, three = {0: WEIGHTS[None]}, {0: np.stack([WEIGHTS] * 3), 1: WEIGHTS[None]}
    plot_heads_png(SOURCE, TARGET, one, tmp_path / "one.png", title="cross attention")
    plot_heads_png(SOURCE, TARGET, three, tmp_path / "three.png", title="cross attention")
    small, large = opened(tmp_path / "one.png"), opened(tmp_path / "three.png")
    assert large.width > small.width
    assert large.height > small.height


def test_heads_without_weights_are_refused(tmp_path: Path) -> None:
    for layers in ({}, {0: np.zeros((0, 4, 5))}):
        with pytest.raises(SaccadeError, match="no layer has a head"):
            plot_heads_png(SOURCE, TARGET, layers, tmp_path / "none.png")


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"missing.a\.png"):
        plot_png(["a"], ["b"], np.ones((1, 1)), tmp_path / "missing" / "a.png")
