"""Recurrent cells and layers on the kernels, against the PyTorch reference."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from saccade.layers.masks import padding_mask
from saccade.layers.recurrent import Bidirectional, Recurrent, TwoInputRecurrent
from saccade.ops.recurrent_cells import GATES, RecurrentState, recurrent_cell

KINDS = ["lstm", "gru"]
WIDTHS = [1, 5, 16, 33, 128]
CLOSE = {"rtol": 1e-4, "atol": 2e-6}


pytestmark = pytest.mark.usefixtures("kernel_level", "seeded", "inference")


@pytest.fixture
def inference():
    """The kernels have no backward pass."""
    with torch.no_grad():
        yield


def state_of(kind, rows, width):
    return RecurrentState(torch.rand(rows, width) * 2 - 1, torch.randn(rows, width) if kind == "lstm" else None)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step(kind, width):
    layer, x, state = Recurrent(kind, 7, width), torch.randn(20, 7) * 3, state_of(kind, 20, width)
    assert_close(*kernel_and_reference(lambda: layer.step(x, state)), **CLOSE)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fed_step_on_a_slice(kind, width):
    """The projections of all positions may be one tensor, of which a step reads one column."""
    layer, state = TwoInputRecurrent(kind, 7, 3, width), state_of(kind, 20, width)
    projected, step_input = layer.project(torch.randn(20, 4, 7)), torch.randn(20, 3)
    assert_close(*kernel_and_reference(lambda: layer(projected[:, 2], step_input, state)), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_gates_saturate_at_large_sums(kind):
    sums = torch.tensor([-1e30, -200.0, -90.0, 90.0, 200.0, 1e30])[:, None].expand(-1, GATES[kind] * 2)
    state = state_of(kind, 6, 2)
    after = recurrent_cell(state, sums, torch.zeros_like(sums))
    assert torch.isfinite(after.hidden).all()
    if kind == "gru":
        assert_close(after.hidden[3:], state.hidden[3:])  # the old state alone
        assert_close(after.hidden[:3], torch.full((3, 2), -1.0))  # the new state alone, at its minimum
    else:
        assert_close(after.cell[3:], state.cell[3:] + 1)  # the old cell, plus the maximum of the new one
        assert_close(after.hidden[3:], after.cell[3:].tanh())
        assert_close(after.cell[:3], torch.zeros(3, 2))
        assert_close(after.hidden[:3], torch.zeros(3, 2))


def test_nan_stays_nan():
    sums = torch.full((1, 6), torch.nan)
    after = recurrent_cell(state_of("gru", 1, 2), sums, torch.zeros_like(sums))
    assert after.hidden.isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_small_states_keep_their_digits(kind):
    """tanh of small numbers has the relative precision of float32, not only the absolute one."""
    width = 16
    inputs = torch.zeros(1, GATES[kind] * width)
    inputs[:, 2 * width : 3 * width] = torch.logspace(-8, -1, width)
    state = RecurrentState(torch.zeros(1, width), torch.zeros(1, width) if kind == "lstm" else None)
    after = recurrent_cell(state, inputs, torch.zeros_like(inputs))
    exact = inputs[:, 2 * width : 3 * width].double().tanh()
    exact = 0.5 * exact if kind == "gru" else 0.5 * (0.5 * exact).tanh()
    assert_close(after.hidden.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [5, 32])
def test_bidirectional_layers(kind, width):
    layer = Bidirectional(kind, 7, width)
    mask = padding_mask(torch.tensor([9, 1, 4, 9, 2]))
    x = torch.randn(5, 9, 7)
    ours, reference = kernel_and_reference(lambda: layer(x, mask))
    for found, expected in zip(ours[1:], reference[1:], strict=True):
        assert_close(found, expected, **CLOSE)
    assert_close(ours[0][mask], reference[0][mask], **CLOSE)
    assert ours[0][~mask].eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_reaches_no_real_position(kind):
    layer, mask = Recurrent(kind, 7, 6), padding_mask(torch.tensor([4, 2]))
    x = torch.randn(2, 4, 7)
    expected = layer(x, mask)
    found = layer(x.masked_fill(~mask[:, :, None], torch.nan), mask)
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_distinct_token_is_projected_once(kind):
    layer, table = Bidirectional(kind, 7, 8).eval(), torch.randn(50, 7)
    mask = padding_mask(torch.tensor([6, 3, 5]))
    tokens = torch.randint(4, (3, 6))
    embedded = []

    def embed(tokens):
        embedded.append(tokens)
        return table[tokens]

    outputs, *states = layer.of_tokens(embed, tokens, mask)
    assert [tokens.tolist() for tokens in embedded] == [tokens[mask].unique().tolist()]
    expected, *others = layer(table[tokens], mask)
    assert_close(outputs, expected, **CLOSE)
    assert_close(states, others, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_without_a_real_position(kind):
    """Their first position counts as real, as in PyTorch's layer."""
    layer, table, tokens = Bidirectional(kind, 7, 8).eval(), torch.randn(50, 7), torch.randint(4, (2, 3))
    for lengths in ([3, 0], [0, 0]):
        mask = padding_mask(torch.tensor(lengths), 3)
        ours, reference = kernel_and_reference(partial(layer.of_tokens, table.__getitem__, tokens, mask))
        assert_close(ours[0][mask], reference[0][mask], **CLOSE)
        assert all(part.isfinite().all() for part in (*ours[1], *ours[2]) if part is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_does_not_change_the_state_before_it(kind):
    layer, state = Recurrent(kind, 7, 16), state_of(kind, 4, 16)
    kept = [None if part is None else part.clone() for part in state]
    layer.step(torch.randn(4, 7), state)
    assert_close(list(state), kept, rtol=0, atol=0)


def test_wrong_shapes_are_refused():
    layer, state = Recurrent("gru", 7, 16), state_of("gru", 4, 16)
    with pytest.raises(ValueError, match="recurrent"):
        layer.step(torch.randn(3, 7), state)
    with pytest.raises(ValueError, match="recurrent_layer"):
        layer(torch.randn(2, 5, 7), torch.ones(2, 7, dtype=torch.bool))
