from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from saccade.interface import Attention, Memory, select


class Pair(NamedTuple):
    left: Any
    right: Any


def test_select_reaches_every_nesting():
    tensor = torch.arange(12).view(4, 3)
    rows = torch.tensor([2, 2, 0])
    state = {"a": [tensor, None], "b": Pair(tensor, (tensor, 5)), "c": Memory(tensor, tensor > 3, extra=(tensor,))}
    found = select(state, rows)
    assert isinstance(found["b"], Pair)
    assert found["a"][1] is None
    assert found["b"].right[1] == 5
    for part in (found["a"][0], found["b"].left, found["b"].right[0], found["c"].states, found["c"].extra[0]):
        assert torch.equal(part, tensor[rows])
    assert torch.equal(found["c"].mask, (tensor > 3)[rows])


def test_select_includes_the_attention_of_a_memory():
    weights = torch.rand(3, 2, 4, 4)
    memory = Memory(
        torch.rand(3, 4, 8), torch.ones(3, 4, dtype=torch.bool), attention=(Attention("encoder-self", 0, weights),)
    )
    found = select(memory, torch.tensor([1]))
    assert torch.equal(found.attention[0].weights, weights[1:2])
    assert found.attention[0].kind == "encoder-self"


def test_select_of_an_unsupported_type_is_an_error():
    with pytest.raises(TypeError, match="not set"):
        select({1, 2}, torch.tensor([0]))
