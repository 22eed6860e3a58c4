from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import SaccadeError
from saccade.layers.positions import LearnedPositions, NoPositions, SinusoidalPositions, make_positions, sinusoids


def test_the_table_is_the_papers_formula():
    table = sinusoids(40, 10)
    for position in range(40):
        for pair in range(5):
            angle = position / 10000 ** (2 * pair / 10)
            assert table[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_a_shift_is_a_linear_function(offset):
    """PE(pos + k) = M(k) PE(pos) with one block-rotation M(k) for all positions (section 3.5)."""
    width = 16
    rotation = torch.zeros(width, width)
    for pair in range(width // 2):
        angle = offset / 10000 ** (2 * pair / width)
        sine, cosine = math.sin(angle), math.cos(angle)
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor([[cosine, sine], [-sine, cosine]])
    table = sinusoids(500, width)
    assert_close(table[: 500 - offset] @ rotation.T, table[offset:], rtol=0, atol=1e-5)


def test_places_beyond_the_table_are_the_same_function():
    short, long = SinusoidalPositions(6, table=4), SinusoidalPositions(6, table=64)
    x = torch.zeros(1, 9, 6)
    assert_close(short(x, first=3), long(x, first=3))


def test_an_odd_width_works():
    assert sinusoids(3, 5).shape == (3, 5)


def test_learned_positions_say_when_a_sequence_is_too_long():
    positions = LearnedPositions(4, longest=3)
    assert positions(torch.zeros(1, 2, 4), first=1).shape == (1, 2, 4)
    with pytest.raises(SaccadeError, match="3 learned positions"):
        positions(torch.zeros(1, 4, 4))


def test_make_positions():
    assert isinstance(make_positions("none", 4, 8), NoPositions)
    assert isinstance(make_positions("learned", 4, 8), LearnedPositions)
    x = torch.randn(1, 2, 4)
    assert torch.equal(make_positions("none", 4, 8)(x), x)
