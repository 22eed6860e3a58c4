from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from saccade.layers.multi_head import CrossAttention, KeysValues, SelfAttention


def one_head(query, key, value):
    return (query @ key.T / math.sqrt(query.size(-1))).softmax(-1) @ value


def test_self_attention_is_h_independent_heads():
    torch.manual_seed(0)
    layer = SelfAttention(12, 3)
    torch.nn.init.normal_(layer.query_key_value.bias)
    x = torch.randn(2, 5, 12)
    query_weight, key_weight, value_weight = layer.query_key_value.weight.chunk(3)
    query_bias, key_bias, value_bias = layer.query_key_value.bias.chunk(3)
    for row in range(2):
        heads = []
        for head in range(3):
            own = slice(4 * head, 4 * head + 4)
            query = x[row] @ query_weight[own].T + query_bias[own]
            key = x[row] @ key_weight[own].T + key_bias[own]
            value = x[row] @ value_weight[own].T + value_bias[own]
            heads.append(one_head(query, key, value))
        expected = torch.cat(heads, -1) @ layer.output.weight.T + layer.output.bias
        assert_close(layer(x).context[row], expected, rtol=1e-4, atol=1e-6)


def test_changing_one_head_leaves_the_others_as_they_are():
    torch.manual_seed(0)
    layer = SelfAttention(12, 3)
    x = torch.randn(1, 5, 12)
    before = layer(x, record=True).weights
    with torch.no_grad():
        layer.query_key_value.weight[4:8] += 1.0  # the queries of head 1
    after = layer(x, record=True).weights
    assert_close(after[:, [0, 2]], before[:, [0, 2]])
    assert not torch.allclose(after[:, 1], before[:, 1])


def test_places_that_are_not_real_are_not_seen():
    torch.manual_seed(0)
    layer = SelfAttention(8, 2).eval()
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    attended = layer(x, mask, record=True)
    assert attended.weights[1, :, :, 3:].abs().max() == 0
    assert_close(layer(x, mask).context[1, :3], layer(x[1:, :3]).context[0], rtol=1e-4, atol=1e-6)
    assert_close(attended.context[:, :3], layer(x, mask).context[:, :3], rtol=1e-4, atol=1e-6)


def test_steps_give_causal_attention():
    torch.manual_seed(0)
    layer = SelfAttention(8, 2).eval()
    x = torch.randn(3, 6, 8)
    whole = layer(x, causal=True).context
    past = layer.empty(x)
    for place in range(6):
        attended, past = layer.step(x[:, place : place + 1], past)
        assert_close(attended.context[:, 0], whole[:, place], rtol=1e-4, atol=1e-6)
    assert past.keys.shape == (3, 2, 6, 4)


def test_cross_attention_takes_queries_from_here_and_the_rest_from_the_memory():
    torch.manual_seed(0)
    layer = CrossAttention(8, 2, memory_width=5)
    memory = layer.project(torch.randn(2, 4, 5))
    assert isinstance(memory, KeysValues)
    x, everything = torch.randn(2, 3, 8), torch.ones(2, 4, dtype=torch.bool)
    found = layer(x, memory, everything, record=True)
    assert found.context.shape == (2, 3, 8)
    assert found.weights.shape == (2, 2, 3, 4)
    assert_close(found.context, layer(x, memory, everything).context)


def test_attention_dropout_acts_only_in_training():
    torch.manual_seed(0)
    layer = SelfAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 6, 8)
    assert not torch.equal(layer(x).context, layer(x).context)
    layer.eval()
    assert torch.equal(layer(x).context, layer(x).context)
