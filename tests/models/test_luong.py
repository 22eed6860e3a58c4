"""Attention after the decoder: scores and window against the equations, input feeding, and options."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch


def reference_scores(model, states, source_states):
    """Attention scores of one decoder state and each encoder state (section 3.1)."""
    if model.score == "dot":
        return torch.stack([states @ h for h in source_states])
    if model.score == "general":
        return torch.stack([states @ (model.key.weight @ h) for h in source_states])
    parts = [model.query.weight @ states + model.key.weight @ h + model.key.bias for h in source_states]
    return torch.stack([model.energy @ torch.tanh(part) for part in parts])


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_scores_and_combination_follow_the_equations(score):
    model = build_model(("luong", {"score": score}))
    batch = make_batch([5], [3])
    memory = model.encode(batch.source)
    state = torch.randn(16, generator=torch.Generator().manual_seed(3))
    attended = model.attend(state[None, None], model.key(memory.states), memory)
    weights = reference_scores(model, state, memory.states[0]).softmax(0)
    context = weights @ memory.states[0]
    assert_close(attended.weights[0, 0], weights, rtol=1e-4, atol=1e-6)
    assert_close(attended.attentional[0, 0], torch.tanh(model.combine.weight @ torch.cat([context, state])))


def test_local_attention_is_a_window_around_a_predicted_position():
    model = build_model(("luong", {"attention": "local-p", "window": 2}))
    batch = make_batch([9, 4], [3, 3])
    memory = model.encode(batch.source)
    states = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(3))
    attended = model.attend(states, model.key(memory.states), memory).weights[:, 0]  # (B, S)
    for row, length in enumerate([9, 4]):
        predicted = torch.sigmoid(
            model.window.position_vector @ torch.tanh(model.window.hidden.weight @ states[row, 0])
        )
        center = (length - 1) * float(predicted.detach())
        scores = reference_scores(model, states[row, 0], memory.states[row])
        gaussian = [math.exp(-((position - center) ** 2) / (2 * 1.0**2)) for position in range(9)]
        inside = torch.tensor([position < length and abs(position - center) <= 2 for position in range(9)])
        assert 1 <= inside.sum() <= 5
        expected = (scores.exp() * torch.tensor(gaussian)).masked_fill(~inside, 0.0)
        assert_close(attended[row], expected / expected.sum(), rtol=1e-4, atol=1e-6)


def test_weights_sum_to_one_at_the_ends_of_the_source():
    model = build_model(("luong", {"attention": "local-p", "window": 1}))
    with torch.no_grad():
        model.window.position_vector.mul_(1000)  # the predicted position is at one of the ends
    batch = make_batch([9, 1, 2], [4, 4, 4])
    weights = model.decode(batch.prefix, model.encode(batch.source), record=True).attention[0].weights
    assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_input_feeding_makes_a_step_depend_on_the_last_attentional_vector():
    model = build_model(("luong", {}))
    batch = make_batch([5], [4])
    memory = model.encode(batch.source)
    state = model.step(batch.prefix[:, 0], model.start(memory), memory).state
    without = state._replace(attentional=torch.zeros_like(state.attentional))
    token = batch.prefix[:, 1]
    assert not torch.allclose(model.step(token, state, memory).output, model.step(token, without, memory).output)


def test_the_memory_keeps_the_order_of_a_source_that_is_read_backwards():
    model = build_model(("luong", {"reverse_source": True, "layers": 1}))
    batch = make_batch([6], [3])
    before = model.encode(batch.source).states
    batch.source.values[0, 2] = (batch.source.values[0, 2] - 3) % 19 + 4
    after = model.encode(batch.source).states
    changed = [not torch.equal(after[0, position], before[0, position]) for position in range(6)]
    assert changed == [True, True, True, False, False, False]  # those read after the changed one
