"""Recurrent layers: fused, stepwise and two-input layers agree; padding reaches no real position."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from saccade.layers.masks import padding_mask
from saccade.layers.recurrent import Bidirectional, Recurrent, TwoInputRecurrent, last, masked_mean, reverse
from saccade.ops.recurrent_cells import RecurrentState

KINDS = ["lstm", "gru"]


pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_the_layer(kind):
    layer = Recurrent(kind, 5, 6)
    x = torch.randn(3, 7, 5)
    outputs, final = layer(x)
    state = layer.empty(x)
    for position in range(7):
        state = layer.step(x[:, position], state)
        assert_close(state.hidden, outputs[:, position])
    assert_close(state.hidden, final.hidden)
    if kind == "lstm":
        assert_close(state.cell, final.cell)
    else:
        assert final.cell is None


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_neither_outputs_nor_the_last_state(kind):
    layer = Recurrent(kind, 5, 6)
    mask = padding_mask(torch.tensor([7, 3, 1]))
    x = torch.randn(3, 7, 5)
    outputs, final = layer(x, mask)
    for row, length in enumerate([7, 3, 1]):
        alone, state = layer(x[row : row + 1, :length])
        assert_close(outputs[row : row + 1, :length], alone)
        assert_close(final.hidden[row : row + 1], state.hidden)
        if kind == "lstm":
            assert_close(final.cell[row : row + 1], state.cell)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_can_be_split_at_any_position(kind):
    layer = Recurrent(kind, 5, 6)
    x = torch.randn(2, 7, 5)
    outputs, _ = layer(x)
    _, middle = layer(x[:, :3])
    rest, _ = layer(x[:, 3:], None, middle)
    assert_close(rest, outputs[:, 3:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_with_two_inputs_equals_a_plain_one_on_their_concatenation(kind):
    layer, plain = TwoInputRecurrent(kind, 4, 3, 6), Recurrent(kind, 7, 6)
    with torch.no_grad():
        plain.layer.weight_ih_l0.copy_(torch.cat([layer.input.weight, layer.step_input.weight], 1))
        plain.layer.weight_hh_l0.copy_(layer.hidden.weight)
        plain.layer.bias_ih_l0.copy_(layer.input.bias)
        plain.layer.bias_hh_l0.copy_(layer.hidden.bias if kind == "gru" else torch.zeros(24))
    known, context = torch.randn(2, 5, 4), torch.randn(2, 5, 3)
    expected, _ = plain(torch.cat([known, context], -1))
    state, projected = layer.empty(known), layer.project(known)
    for position in range(5):
        state = layer(projected[:, position], context[:, position], state)
        assert_close(state.hidden, expected[:, position])


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_equal_those_of_pytorch(kind):
    ours = Bidirectional(kind, 5, 6)
    library = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(5, 6, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for suffix, direction in (("", ours.forwards), ("_reverse", ours.backwards)):
            for name, parameter in direction.layer.named_parameters():
                getattr(library, name + suffix).copy_(parameter)
    x = torch.randn(1, 4, 5)
    outputs, end, beginning = ours(torch.cat([x, torch.randn(1, 3, 5)], 1), padding_mask(torch.tensor([4]), 7))
    expected, final = library(x)
    hidden = final[0] if kind == "lstm" else final
    assert_close(outputs[:, :4], expected)
    assert_close(torch.stack([end.hidden, beginning.hidden]), hidden)


def test_reverse_keeps_padding_at_the_end():
    x = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 9]])[:, :, None]
    mask = padding_mask(torch.tensor([4, 2]))
    assert reverse(x, mask)[:, :, 0].tolist() == [[4, 3, 2, 1], [2, 1, 0, 9]]
    assert torch.equal(reverse(reverse(x, mask), mask), x)


def test_last_and_mean_ignore_padding():
    x = torch.tensor([[[1.0], [2.0], [6.0]], [[5.0], [7.0], [torch.nan]]])
    mask = padding_mask(torch.tensor([3, 2]))
    assert last(x, mask).tolist() == [[6.0], [7.0]]
    assert masked_mean(x, mask).tolist() == [[3.0], [6.0]]


def test_a_state_of_a_gru_has_no_cell():
    assert isinstance(Recurrent("gru", 2, 3).empty(torch.zeros(4, 1)), RecurrentState)
    assert Recurrent("gru", 2, 3).empty(torch.zeros(4, 1)).cell is None
