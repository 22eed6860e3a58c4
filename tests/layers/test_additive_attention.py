from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from saccade.interface import Memory
from saccade.layers.additive_attention import AdditiveAttention


@pytest.fixture
def attention():
    """s_j = tanh(2 q + m_j)."""
    found = AdditiveAttention(query=1, memory=1, width=1)
    with torch.no_grad():
        for parameter, value in ((found.query.weight, 2.0), (found.key.weight, 1.0), (found.key.bias, 0.0)):
            parameter.fill_(value)
        found.vector.fill_(1.0)
    return found


def test_figures_by_hand(attention):
    memory = Memory(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.tensor([[True, True, False]]))
    attended = attention(torch.tensor([[0.5]]), attention.project(memory), memory)
    near, far = math.exp(math.tanh(1.0)), math.exp(math.tanh(2.0))
    assert_close(attended.weights, torch.tensor([[[near / (near + far), far / (near + far), 0.0]]]))
    assert_close(attended.context, torch.tensor([[far / (near + far)]]))  # of the values 0 and 1


def test_hypotheses_of_a_sentence_share_its_keys():
    torch.manual_seed(0)
    attention = AdditiveAttention(query=3, memory=4, width=5)
    memory = Memory(torch.randn(2, 6, 4), torch.ones(2, 6, dtype=torch.bool))
    keys = attention.project(memory)
    hidden = torch.randn(6, 3)  # three of each sentence
    together = attention(hidden, keys, memory)
    assert together.weights.shape == (2, 3, 6)
    for number in range(6):
        row = slice(number // 3, number // 3 + 1)
        own = Memory(memory.states[row], memory.mask[row])
        alone = attention(hidden[number : number + 1], keys[row], own)
        assert_close(together.context[number], alone.context[0])
        assert_close(together.weights[number // 3, number % 3], alone.weights[0, 0])
