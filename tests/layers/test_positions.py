from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import SaccadeError
from saccade.layers.embedding import Embedding, embedding_table
from saccade.layers.positions import (
    ConcatenatedPositions,
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    make_positions,
    sinusoids,
)


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


def test_positions_beyond_the_table_follow_the_formula():
    short, long = SinusoidalPositions(6, table=4), SinusoidalPositions(6, table=64)
    x = torch.zeros(1, 9, 6)
    assert_close(short(x, first=3), long(x, first=3))


def test_an_odd_width_works():
    assert sinusoids(3, 5).shape == (3, 5)


def test_learned_positions_refuse_a_sequence_that_is_too_long():
    positions = LearnedPositions(4, max_positions=3)
    assert positions(torch.zeros(1, 2, 4), first=1).shape == (1, 2, 4)
    with pytest.raises(SaccadeError):
        positions(torch.zeros(1, 4, 4))


def test_make_positions():
    assert isinstance(make_positions("none", 4, 8), NoPositions)
    assert isinstance(make_positions("learned", 4, 8), LearnedPositions)
    x = torch.randn(1, 2, 4)
    assert torch.equal(make_positions("none", 4, 8)(x), x)


@pytest.mark.parametrize("first", [0, 5])
def test_concatenated_positions_come_after_the_embedding(first):
    positions = make_positions("sinusoidal", 6, 8, "concatenate")
    assert isinstance(positions, ConcatenatedPositions)
    x = torch.randn(2, 3, 4)
    found = positions(x, first)
    assert torch.equal(found[..., :4], x)
    assert_close(found[1, :, 4:], sinusoids(3, 6, first))


def test_concatenated_positions_may_be_learned():
    positions = make_positions("learned", 6, 8, "concatenate")
    found = positions(torch.zeros(2, 3, 4), first=2)
    assert_close(found[0, :, 4:], positions.positions.table[2:5])
    found.sum().backward()
    assert positions.positions.table.grad.sum(1).tolist() == [0, 0, 12, 12, 12, 0, 0, 0]  # 2 sentences, 6 dimensions
    with pytest.raises(SaccadeError):
        positions(torch.zeros(1, 4, 4), first=5)


def test_an_embedding_with_concatenated_positions():
    table = embedding_table(10, 16)
    layer = Embedding(table, 0.0, "sinusoidal", 64, position_width=4)
    tokens = torch.tensor([[3, 1, 3]])
    assert_close(layer(tokens)[0], torch.cat([table[[3, 1, 3]] * 4, sinusoids(3, 4)], -1))
    assert_close(layer(tokens[:, 1:], first=1)[0], layer(tokens)[0, 1:])
