"""The outline of a model: names and shapes of its tensors without memory for them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from contracts.registered_models import SEPARATE, SIZES, choice_of, registered_models
from saccade.errors import SaccadeError
from saccade.interface import VocabularySizes
from saccade.model_folder import named_weights
from saccade.models.registry import choose


@pytest.mark.parametrize("sizes", [SIZES, SEPARATE], ids=["joint", "separate"])
@pytest.mark.parametrize("subject", registered_models())
def test_an_outline_has_the_names_and_shapes_of_the_model(
    subject: tuple[str, dict[str, Any]], sizes: VocabularySizes
) -> None:
    choice = choice_of(subject)
    before = torch.get_rng_state()
    outline = choice.outline(sizes)
    assert torch.equal(torch.get_rng_state(), before)  # an outline draws no random numbers
    built = named_weights(choice.make(sizes))
    found = named_weights(outline)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in built.items()
    }
    assert all(tensor.is_meta for tensor in found.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 2_000_000_000},
        {"width": 2**62},
        {"feed_forward": 10**12},
        {"encoder_layers": 10**9},
        {"positions": "learned", "max_positions": 10**12},
    ],
    ids=str,
)
def test_a_model_of_impossible_size_is_refused_quickly(changes: dict[str, Any]) -> None:
    choice = choose({"family": "transformer", "heads": 2, **changes})
    began = time.thread_time()
    with pytest.raises(SaccadeError) as caught:
        choice.build(SIZES)
    assert caught.value.where == "model"
    assert time.thread_time() - began < 5
