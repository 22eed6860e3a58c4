from __future__ import annotations

import re

import numpy as np
import pytest

from plots.example_attention import SOURCE, TARGET, WEIGHTS
from saccade.errors import SaccadeError
from saccade.plots.terminal_attention_map import COLORS, SHADES, draw_terminal
from saccade.plots.text_cells import cells


def body(drawing: str, rows: int) -> list[str]:
    """The rows of the last band, without header and legend."""
    return drawing.splitlines()[-1 - rows : -1]


def test_one_row_per_target_piece_and_shades_on_a_scale_from_0_to_1() -> None:
    drawing = draw_terminal(SOURCE, TARGET, WEIGHTS, width=80, color=False)
    assert len(drawing.splitlines()) == len("sleeps") + len(TARGET) + 1
    rows = body(drawing, len(TARGET))
    start = len("schläft") + 1
    assert [row[:start].strip() for row in rows] == TARGET
    shades = [[row.ljust(80)[start + 2 * column] for column in range(len(SOURCE))] for row in rows]
    expected = [[SHADES[round(weight * 4)] for weight in row] for row in WEIGHTS]
    assert shades == expected
    assert "".join(rows).count(SHADES[-1]) == 2  # one cell, two characters wide
    assert drawing.splitlines()[-1].strip() == "0 ·░▒▓█ 1   largest 0.95, uniform 1/5 = 0.2"


def test_source_pieces_can_be_read_downwards_above_their_columns() -> None:
    header = draw_terminal(SOURCE, TARGET, WEIGHTS, width=80).splitlines()[: len("sleeps")]
    start = len("schläft") + 1
    for column, piece in enumerate(SOURCE):
        assert "".join(line.ljust(80)[start + 2 * column] for line in header).strip() == piece


def test_color_has_the_same_scale() -> None:
    drawing = draw_terminal(SOURCE, TARGET, WEIGHTS, width=80, color=True)
    painted = [re.findall(r"\x1b\[48;5;(\d+)m  \x1b\[0m", row) for row in body(drawing, len(TARGET))]
    assert [len(row) for row in painted] == [len(SOURCE)] * len(TARGET)
    levels = np.array([[COLORS.index(int(color)) for color in row] for row in painted])
    assert np.unravel_index(levels.argmax(), levels.shape) == (2, 3)
    assert levels[2, 3] == round(0.95 * (len(COLORS) - 1))
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


def test_columns_of_wide_letters_are_aligned() -> None:
    drawing = draw_terminal(["我", "x"], ["I", "猫"], np.eye(2), width=40)
    assert drawing.splitlines() == ["   我x", " I ██·", "猫 · ██", "   0 ·░▒▓█ 1   largest 1.00, uniform 1/2 = 0.5"]


def test_the_default_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "26")
    assert draw_terminal(SOURCE * 4, TARGET, np.eye(4, 20)) == draw_terminal(
        SOURCE * 4, TARGET, np.eye(4, 20), width=26
    )


def test_uniform_attention_has_the_lightest_shade_everywhere() -> None:
    drawing = draw_terminal(SOURCE * 2, TARGET, np.full((4, 10), 0.1), width=80)
    assert not set("".join(body(drawing, 4))) & set(SHADES[1:])
    assert "largest 0.10, uniform 1/10 = 0.1" in drawing


def test_zero_weights_are_light_and_nan_is_zero() -> None:
    assert "█" not in body(draw_terminal(["a"], ["b"], np.zeros((1, 1)), width=80), 1)[0]
    assert body(draw_terminal(["a", "c"], ["b"], np.array([[np.nan, 1.0]]), width=80), 1) == ["b · ██"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in draw_terminal(["\x1b[2J"], ["\x1b]0;x\x07"], np.ones((1, 1)), width=80)


def test_weights_of_another_shape_are_an_error() -> None:
    for source, target, weights in ((["a", "b"], TARGET, WEIGHTS), ([], TARGET, np.zeros((4, 0)))):
        with pytest.raises(SaccadeError) as raised:
            draw_terminal(source, target, weights)
        assert raised.value.hint
