from __future__ import annotations

import pytest

from saccade.plots.text_cells import cells, clip, clusters, visible


def test_combining_marks_and_joined_emoji_stay_with_their_base() -> None:
    assert clusters("e\u0301a") == ["e\u0301", "a"]
    assert clusters("\U0001f468\u200d\U0001f33e!") == ["\U0001f468\u200d\U0001f33e", "!"]
    assert clusters("") == []


@pytest.mark.parametrize(
    ("text", "width", "expected"), [("hello", 5, "hello"), ("hello", 4, "hel…"), ("日本語", 5, "日本…"), ("abc", 0, "")]
)
def test_clipped_text_fits_the_width(text: str, width: int, expected: str) -> None:
    assert clip(text, width) == expected
    assert cells(clip(text, width)) <= width


def test_whitespace_and_control_characters_are_replaced() -> None:
    assert visible("") == "∅"
    assert visible("a b\n") == "a␣b␣"
    assert visible("\x1b[31m\u202e") == "\ufffd[31m\ufffd"
