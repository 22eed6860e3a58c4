from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from layers.padded import packed_memory, run_padded, with_bias
from saccade.layers.masks import padding_mask
from saccade.layers.multi_head import CrossAttention, SelfAttention

CLOSE = {"rtol": 1e-4, "atol": 1e-6}

pytestmark = pytest.mark.usefixtures("seeded")


def with_random_biases(layer):
    """Biases start at zero; no test may hold only because of that."""
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return layer


def one_head(query, key, value):
    return (query @ key.T / math.sqrt(query.size(-1))).softmax(-1) @ value


def by_heads(query, key, value, heads):
    """Attention of one sentence, queries (T, D) to keys and values (S, D), head by head."""
    parts = zip(*(x.chunk(heads, -1) for x in (query, key, value)), strict=True)
    return torch.cat([one_head(*part) for part in parts], -1)


@pytest.mark.usefixtures("grad_mode")
def test_self_attention_is_h_independent_heads():
    layer, x = with_random_biases(SelfAttention(12, 3)), torch.randn(2, 5, 12)
    found = run_padded(layer, x).values
    for row in range(2):
        query, key, value = layer.query_key_value(x[row]).chunk(3, -1)
        assert_close(found[row], layer.output(by_heads(query, key, value, 3)), **CLOSE)


def test_changing_one_head_leaves_the_others_unchanged():
    layer, x = SelfAttention(12, 3), torch.randn(1, 5, 12)
    before = run_padded(layer, x, record=True).weights
    with torch.no_grad():
        layer.query_key_value.weight[4:8] += 1.0  # the queries of head 1
    after = run_padded(layer, x, record=True).weights
    assert_close(after[:, [0, 2]], before[:, [0, 2]])
    assert not torch.allclose(after[:, 1], before[:, 1])


@pytest.mark.usefixtures("grad_mode")
def test_self_attention_ignores_padding():
    layer, x = with_random_biases(SelfAttention(8, 2)).eval(), torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    recorded, found = run_padded(layer, x, mask, record=True), run_padded(layer, x, mask)
    assert recorded.weights[1, :, :, 3:].abs().max() == 0
    assert_close(found.values[1, :3], run_padded(layer, x[1:, :3]).values[0], **CLOSE)
    assert_close(recorded.values, found.values, **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_steps_equal_causal_attention():
    layer, x = with_random_biases(SelfAttention(8, 2)).eval(), torch.randn(3, 6, 8)
    full, cache = run_padded(layer, x, causal=True), layer.start(3, x)
    weights = run_padded(layer, x, causal=True, record=True).weights
    for position in range(6):
        recorded = layer.step(x[:, position], cache, record=True).output
        step = layer.step(x[:, position], cache)
        cache = step.cache
        assert_close(with_bias(step.output), full.values[:, position], **CLOSE)
        assert_close(recorded.weights, weights[:, :, position : position + 1, : position + 1], **CLOSE)
        assert step.output.weights is None
        assert (cache.position, cache.cached) == (position + 1, position + 1)


@pytest.mark.usefixtures("grad_mode")
def test_cross_attention_takes_queries_from_the_decoder_and_the_rest_from_the_memory():
    layer = with_random_biases(CrossAttention(8, 2, memory_width=5))
    x, memory, mask = torch.randn(2, 3, 8), torch.randn(2, 4, 5), padding_mask(torch.tensor([4, 2]))
    found = run_padded(layer, x, memory=memory, memory_mask=mask)
    recorded = run_padded(layer, x, memory=memory, memory_mask=mask, record=True)
    assert recorded.weights.shape == (2, 2, 3, 4)
    assert recorded.weights[1, :, :, 2:].abs().max() == 0
    assert_close(recorded.values, found.values, **CLOSE)
    for row, length in enumerate([4, 2]):
        key, value = layer.key_value(memory[row, :length]).chunk(2, -1)
        assert_close(found.values[row], layer.output(by_heads(layer.query(x[row]), key, value, 2)), **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_steps_of_several_hypotheses_equal_cross_attention():
    layer = with_random_biases(CrossAttention(8, 2)).eval()
    x, memory, mask = torch.randn(2, 3, 8), torch.randn(2, 4, 8), padding_mask(torch.tensor([4, 2]))
    full = run_padded(layer, x, memory=memory, memory_mask=mask, record=True)
    cache = layer.start(*packed_memory(memory, mask))
    step = layer.step(x.flatten(0, 1), cache, 0, record=True)  # as many hypotheses of a sentence as it had positions
    assert_close(with_bias(step).view(2, 3, 8), full.values, **CLOSE)
    assert_close(step.weights.view(2, 3, 2, 4), full.weights.transpose(1, 2), **CLOSE)
    assert_close(with_bias(layer.step(x.flatten(0, 1), cache, 5)).view(2, 3, 8), full.values, **CLOSE)


def test_attention_dropout_acts_only_in_training():
    layer, x = SelfAttention(8, 2, dropout=0.5), torch.randn(1, 6, 8)
    assert not torch.equal(run_padded(layer, x).values, run_padded(layer, x).values)
    layer.eval()
    assert torch.equal(run_padded(layer, x).values, run_padded(layer, x).values)
