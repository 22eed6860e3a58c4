from __future__ import annotations

import pytest

from saccade.plots.text_blocks import isolate_right_to_left, label_of, measure, wrap, wrapped_title
from saccade.plots.text_cells import cells


@pytest.mark.parametrize("text", ["one two three four five six seven", "x" * 60, "猫は魚を食べる" * 8, ""])
def test_wrapped_lines_fit_and_nothing_is_lost(text: str) -> None:
    lines = wrap(text, inches=1.5, font=10, max_lines=99)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max((measure([line], 10).width for line in lines), default=0) <= 1.5


def test_only_the_last_line_is_shortened() -> None:
    full = wrap("one two three four five six seven", 1.0, 10, 99)
    lines = wrap("one two three four five six seven", 1.0, 10, 2)
    assert len(lines) == 2
    assert lines[0] == full[0]
    assert lines[1].endswith("…")
    assert cells(lines[1]) <= cells(max(full, key=cells)) + 2


def test_each_text_of_a_title_begins_with_its_name() -> None:
    lines = wrapped_title({"source": "one two three four five", "output": "x"}, 2.0, 11, 3)
    assert lines[0].startswith("source: one")
    assert lines[-1] == "output: x"
    assert all(not line.startswith("source:") for line in lines[1:])


def test_only_right_to_left_text_is_isolated() -> None:
    assert isolate_right_to_left("abc 123 猫") == "abc 123 猫"
    for text in ("שלום", "x مرحبا"):
        assert isolate_right_to_left(text) == f"\u2068{text}\u2069"
    assert label_of("x" * 99).endswith("…")


def test_measured_sizes_grow_with_text_and_font() -> None:
    small, long, large = measure(["abc"], 8), measure(["abc", "abcdef"], 8), measure(["abc"], 16)
    assert long.width > 1.5 * small.width
    assert large.width == pytest.approx(2 * small.width, rel=0.1)
    assert measure([], 8) == (0, 0)
