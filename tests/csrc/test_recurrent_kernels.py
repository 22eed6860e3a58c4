"""Recurrent layers, gates and looks at a memory on the kernels, against torch's own operations."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from saccade.layers.masks import padding_mask
from saccade.layers.recurrent import Bidirectional, FedRecurrent, Recurrent
from saccade.ops.dispatch import without_kernels
from saccade.ops.glu import linear_glu
from saccade.ops.recurrent_cells import GATES, RecurrentState, recurrent_cell
from saccade.ops.single_head_attention import MOST_QUERIES as FEW
from saccade.ops.single_head_attention import single_head_attention as look

KINDS = ["lstm", "gru"]
WIDTHS = [1, 5, 16, 33, 128]
CLOSE = {"rtol": 1e-4, "atol": 2e-6}


@pytest.fixture(autouse=True)
def nothing_is_learnt():
    with torch.no_grad():
        yield


def both(function):
    """What it gives on the kernels and without them."""
    with without_kernels():
        plain = function()
    return function(), plain


def state_of(kind, rows, width):
    return RecurrentState(torch.rand(rows, width) * 2 - 1, torch.randn(rows, width) if kind == "lstm" else None)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step(kind, width):
    layer, x, state = Recurrent(kind, 7, width), torch.randn(20, 7) * 3, state_of(kind, 20, width)
    assert_close(*both(lambda: layer.step(x, state)), **CLOSE)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fed_step_on_a_slice(kind, width):
    """The projections of all places may be one tensor, of which a step sees a column."""
    layer, state = FedRecurrent(kind, 7, 3, width), state_of(kind, 20, width)
    projected, fed = layer.project(torch.randn(20, 4, 7)), torch.randn(20, 3)
    assert_close(*both(lambda: layer(projected[:, 2], fed, state)), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_far_from_zero_the_gates_are_open_or_shut(kind):
    shares = torch.tensor([-1e30, -200.0, -90.0, 90.0, 200.0, 1e30])[:, None].expand(-1, GATES[kind] * 2)
    state = state_of(kind, 6, 2)
    after = recurrent_cell(state, shares, torch.zeros_like(shares))
    assert torch.isfinite(after.hidden).all()
    if kind == "gru":
        assert_close(after.hidden[3:], state.hidden[3:])  # all of it is kept
        assert_close(after.hidden[:3], torch.full((3, 2), -1.0))  # all of it is new, and new is as low as can be
    else:
        assert_close(after.cell[3:], state.cell[3:] + 1)  # kept, and as much as can be written
        assert_close(after.hidden[3:], after.cell[3:].tanh())
        assert_close(after.cell[:3], torch.zeros(3, 2))
        assert_close(after.hidden[:3], torch.zeros(3, 2))


def test_what_is_no_number_stays_none():
    shares = torch.full((1, 6), torch.nan)
    after = recurrent_cell(state_of("gru", 1, 2), shares, torch.zeros_like(shares))
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
def test_whole_sequences_both_ways(kind, width):
    layer = Bidirectional(kind, 7, width)
    mask = padding_mask(torch.tensor([9, 1, 4, 9, 2]))
    x = torch.randn(5, 9, 7)
    ours, plain = both(lambda: layer(x, mask))
    for found, expected in zip(ours[1:], plain[1:], strict=True):
        assert_close(found, expected, **CLOSE)
    assert_close(ours[0][mask], plain[0][mask], **CLOSE)
    assert ours[0][~mask].eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_reaches_a_real_place(kind):
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
    asked = []

    def embed(of):
        asked.append(of)
        return table[of]

    outputs, *states = layer.of_tokens(embed, tokens, mask)
    assert [of.tolist() for of in asked] == [tokens[mask].unique().tolist()]
    expected, *others = layer(table[tokens], mask)
    assert_close(outputs, expected, **CLOSE)
    assert_close(states, others, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_real_place(kind):
    """They are read as if their first place were real, as the library's layer is."""
    layer, table, tokens = Bidirectional(kind, 7, 8).eval(), torch.randn(50, 7), torch.randint(4, (2, 3))
    for lengths in ([3, 0], [0, 0]):
        mask = padding_mask(torch.tensor(lengths), 3)
        ours, plain = both(lambda mask=mask: layer.of_tokens(lambda of: table[of], tokens, mask))
        assert_close(ours[0][mask], plain[0][mask], **CLOSE)
        assert all(part.isfinite().all() for part in (*ours[1], *ours[2]) if part is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_before_a_step_stays(kind):
    layer, state = Recurrent(kind, 7, 16), state_of(kind, 4, 16)
    kept = [None if part is None else part.clone() for part in state]
    layer.step(torch.randn(4, 7), state)
    assert_close(list(state), kept, rtol=0, atol=0)


def test_what_does_not_fit_is_refused():
    layer, state = Recurrent("gru", 7, 16), state_of("gru", 4, 16)
    with pytest.raises(ValueError, match="recurrent"):
        layer.step(torch.randn(3, 7), state)
    with pytest.raises(ValueError, match="recurrent_layer"):
        layer(torch.randn(2, 5, 7), torch.ones(2, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask"):
        look(torch.randn(2, 1, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6), torch.ones(2, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="float64"):
        look(
            torch.randn(2, 1, 4),
            torch.randn(2, 5, 4).double(),
            torch.randn(2, 5, 6),
            torch.ones(2, 5, dtype=torch.bool),
        )


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (3, 2, 7, 5, 9), (4, 1, 40, 33, 64), (2, FEW, 17, 16, 32)])
def test_a_look(shape, additive):
    batch, beam, places, width, depth = shape
    query, keys = torch.randn(batch, beam, width), torch.randn(batch, places, width) * 2
    values, vector = torch.randn(batch, places, depth), torch.randn(width) if additive else None
    mask = torch.rand(batch, places) < 0.7  # anywhere, not only behind
    mask[:, 0] = True
    assert_close(*both(lambda: look(query, keys, values, mask, vector)), **CLOSE)


def test_nothing_is_taken_from_where_the_mask_is_false():
    query, keys, values = torch.randn(3, 1, 4), torch.randn(3, 5, 4), torch.randn(3, 5, 6)
    mask = padding_mask(torch.tensor([5, 2, 0]), 5)
    expected = look(query, keys, values, mask)
    hidden = ~mask[:, :, None]
    found = look(query, keys.masked_fill(hidden, torch.nan), values.masked_fill(hidden, torch.nan), mask)
    assert_close(found, expected, rtol=0, atol=0)
    assert found.context[2].eq(0).all()
    assert found.weights[2].eq(0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_gated_linear_units(width):
    x, residual = torch.randn(6, 3, 7) * 4, torch.randn(6, 3, width)
    weight, bias = torch.randn(2 * width, 7), torch.randn(2 * width)
    assert_close(*both(lambda: linear_glu(x, weight, bias)), rtol=1e-4, atol=1e-5)
    assert_close(*both(lambda: linear_glu(x, weight, bias, residual, 0.7)), rtol=1e-4, atol=1e-5)
