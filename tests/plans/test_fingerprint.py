"""What is kept of a settled Transformer is let go as soon as anything of it changes."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.csrc.library import library
from saccade.interface import Memory
from saccade.models import transformer_rows
from saccade.models.transformer import Transformer
from saccade.models.transformer_rows import SETTLED, settled
from saccade.ops.dispatch import without_kernels

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler has built the kernels")


@pytest.fixture
def model() -> Transformer:
    model = build_model(("transformer", {"norm": "pre", "width": 16, "heads": 2})).eval()
    assert isinstance(model, Transformer)
    with torch.no_grad():
        model.settle()
    return model


def outputs(model: Transformer) -> list[torch.Tensor]:
    batch = make_batch([5, 3], [4, 4])
    memory: Memory = model.encode(batch.source)
    step = model.step(batch.prefix[:, 0], model.start(memory), memory)
    return [memory.states[memory.mask], step.output]


def change_in_place(model: Transformer) -> None:
    model.decoder[1].cross.query.weight.mul_(-1.0)


def load_others(model: Transformer) -> None:
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


def move(model: Transformer) -> None:
    weight = model.encoder[0].attention.output.weight
    weight.data = weight.data * 2.0


def replace_weight(model: Transformer) -> None:
    model.decoder[0].feed_forward.expand.weight = nn.Parameter(
        torch.randn_like(model.decoder[0].feed_forward.expand.weight)
    )


def replace_module(model: Transformer) -> None:
    model.encoder[1] = copy.deepcopy(model.encoder[0])


@torch.no_grad()
def test_as_long_as_nothing_changes_nothing_is_made_again(model, monkeypatch):
    with without_kernels():
        expected = outputs(model)
    monkeypatch.setattr(transformer_rows, "whole_stack", None)
    assert_close(outputs(model), expected, rtol=1e-4, atol=1e-5)
    assert model.native(model.encode(make_batch([4], [2]).source)).output_screen is not None


@pytest.mark.parametrize(
    "change", [change_in_place, load_others, move, replace_weight, replace_module], ids=lambda change: change.__name__
)
@torch.no_grad()
def test_changes_are_seen(model, change):
    before = outputs(model)
    assert settled(model) is not None
    change(model)
    assert settled(model) is None
    with without_kernels():
        expected = outputs(model)
    found = outputs(model)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert any(not torch.allclose(one, other, atol=1e-3) for one, other in zip(found, before, strict=True))


@torch.no_grad()
def test_a_part_that_drops_units_is_seen(model):
    model.decoder[1].train()
    assert settled(model) is None
    model.eval()
    assert settled(model) is not None


@torch.no_grad()
def test_the_screen_of_a_changed_table_is_not_taken(model):
    memory = model.encode(make_batch([4], [2]).source)
    model.output.table.mul_(2.0)
    assert model.native(memory).output_screen is None


def test_a_model_that_nobody_needs_is_forgotten_and_a_copy_is_not_settled(model):
    other = copy.deepcopy(model)
    assert other not in SETTLED
    with torch.no_grad():
        other.settle()
    before = len(SETTLED)
    del other
    gc.collect()
    assert len(SETTLED) == before - 1


@torch.no_grad()
def test_one_that_has_no_kernels_stays_as_it_is():
    for changes in ({"radius": 2}, {"experts": 4, "experts_per_token": 2}):
        model = build_model(("transformer", changes)).eval()
        model.settle()
        assert model not in SETTLED
