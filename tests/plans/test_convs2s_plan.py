"""The plan of ConvS2S equals the model, and notices every change of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from contracts import test_model_contracts as contracts
from contracts.registered_models import build_model, make_batch
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import SearchRequest, search
from saccade.models.convs2s import FAMILY, ConvS2SState
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import int8_available
from saccade.plans.convs2s_plan import ConvS2SPlan, PlanState
from saccade.plans.quantization import quantized_copy
from saccade.symbols import Symbols

CHANGES: list[dict[str, Any]] = [{}, *map(dict, FAMILY.variants), {"kernel": 1}, {"kernel": 5, "separable": True}]
FLOAT_OR_INT8 = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not int8_available(), reason="this processor has no int8 products")),
]


def make(changes: dict[str, Any], *, int8: bool = False) -> Any:
    model = build_model(("convs2s", changes))
    return quantized_copy(model) if int8 else model


def repeated_batch() -> Any:
    """A batch in which every token occurs several times."""
    lengths = [9, 7, 7, 2, 5] * 4
    return make_batch(lengths, lengths)


def outputs(model: Any) -> list[torch.Tensor]:
    """Memory, outputs, attention weights and logits of all steps."""
    batch = repeated_batch()
    memory = model.encode(batch.source)
    state, found = model.start(memory), [memory.states, memory.extra]
    for token, mask in zip(batch.prefix.unbind(1), batch.target_mask.unbind(1), strict=True):
        step = model.step(token, state, memory, record=True)
        state = step.state
        found += [step.output[mask], model.logits(step.output)[mask]]
        found += [record.weights[mask] for record in step.attention]
    return found


@pytest.mark.parametrize("int8", FLOAT_OR_INT8, ids=lambda int8: "int8" if int8 else "float32")
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@torch.no_grad()
def test_outputs_equal_those_of_the_model(changes, int8):
    model = make(changes, int8=int8)
    plan = ConvS2SPlan(model)
    assert plan.max_target_positions == model.max_target_positions
    assert_close(outputs(plan), outputs(model), rtol=1e-5, atol=1e-5)
    batch = repeated_batch()
    memory = model.encode(batch.source)
    assert_close(plan.decode(batch.prefix, memory).outputs, model.decode(batch.prefix, memory).outputs, rtol=0, atol=0)


@pytest.mark.skipif(not int8_available(), reason="this processor has no int8 products")
@torch.no_grad()
def test_a_quantizing_plan_equals_the_plan_of_a_quantized_copy():
    model = make({})
    found = outputs(ConvS2SPlan(model, quantize=True))
    assert_close(found, outputs(ConvS2SPlan(quantized_copy(model))), rtol=0, atol=0)
    assert not torch.equal(found[3], outputs(ConvS2SPlan(model))[3])  # the logits of the first step


@torch.no_grad()
def test_outputs_equal_those_of_the_model_without_kernels():
    model = make({})
    with without_kernels():
        assert_close(outputs(ConvS2SPlan(model)), outputs(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("int8", FLOAT_OR_INT8, ids=lambda int8: "int8" if int8 else "float32")
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("config", [DecodingConfig(beam=1, max_length=12), DecodingConfig(beam=4, max_length=12)])
def test_translations_equal_those_of_the_model(changes, int8, config):
    model, source = make(changes, int8=int8), repeated_batch().source

    def translations(decoder: Any) -> list[list[tuple[int, ...]]]:
        with torch.inference_mode():
            found = search(decoder, SearchRequest(decoder.encode(source), config, Symbols()))
        return [[tuple(hypothesis.tokens) for hypothesis in hypotheses] for hypotheses in found]

    assert translations(ConvS2SPlan(model)) == translations(model)


@pytest.mark.parametrize("contract", contracts.INTERFACE_CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("gradients", [True, False])
def test_interface_contracts(contract, gradients):
    arguments = [ConvS2SPlan(make({})), make_batch([7, 4, 1, 5], [6, 3, 5, 1])]
    with torch.set_grad_enabled(gradients):
        contract(*arguments[: contract.__code__.co_argcount])


def test_the_kind_of_state_depends_on_gradients_and_int8_weights():
    model, memory = make({}), make({}).encode(repeated_batch().source)
    with torch.no_grad():
        assert isinstance(ConvS2SPlan(model).start(memory), PlanState)
        if int8_available():
            quantized = make({"weight_normalization": False}, int8=True)
            assert isinstance(ConvS2SPlan(quantized).start(memory), ConvS2SState)
    assert isinstance(ConvS2SPlan(model).start(memory), ConvS2SState)  # with gradients


@torch.no_grad()
def test_first_encoder_layer_is_computed_once_for_each_distinct_token():
    plan = ConvS2SPlan(make({}))
    taps = plan.compiled.encoder_taps
    assert taps is not None
    plan.compiled = plan.compiled._replace(encoder_taps=torch.full_like(taps, torch.nan))
    assert plan.encode(repeated_batch().source).states.isnan().any()
    assert not plan.encode(make_batch([3], [1]).source).states.isnan().any()  # fewer positions than distinct products


def test_gradients_are_those_of_the_model():
    model, batch = make({}), make_batch([5, 3], [4, 2])

    def gradients(decoder: Any) -> dict[str, torch.Tensor]:
        model.zero_grad()
        memory = decoder.encode(batch.source)
        step = decoder.step(batch.prefix[:, 0], decoder.start(memory), memory)
        decoder.logits(step.output).square().sum().backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    expected = gradients(model)
    assert_close(gradients(ConvS2SPlan(model)), expected)
    assert all(found.abs().max() > 0 for found in expected.values())


def test_the_model_keeps_its_weights_and_attributes():
    model = make({})
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    attributes = [(set(vars(part)), set(map(id, part.parameters()))) for part in model.modules()]
    plan = ConvS2SPlan(model)
    with torch.no_grad():
        outputs(plan)
    assert_close(dict(model.state_dict()), weights, rtol=0, atol=0)
    assert [(set(vars(part)), set(map(id, part.parameters()))) for part in model.modules()] == attributes


def scale_in_place(model: Any) -> None:
    model.decoder[0].convolution.projection.direction[:, :3].mul_(-2.0)


def load_weights(model: Any) -> None:
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


def replace_storage(model: Any) -> None:
    scale = model.encoder[0].convolution.projection.scale
    scale.data = scale.data * 2.0


def replace_parameter(model: Any) -> None:
    model.decoder[1].query.scale = nn.Parameter(torch.randn_like(model.decoder[1].query.scale))


def replace_module(model: Any) -> None:
    model.encoder[1] = copy.deepcopy(model.encoder[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "change",
    [scale_in_place, load_weights, replace_storage, replace_parameter, replace_module],
    ids=lambda change: change.__name__,
)
def test_changes_of_the_model_are_noticed(change: Callable[[Any], None], mode: Any):
    model = make({})
    plan = ConvS2SPlan(model)
    with mode():
        before = outputs(plan)
    with torch.no_grad():
        change(model)
    with mode():
        after = outputs(plan)
        assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
        assert_close(after, outputs(model), rtol=1e-5, atol=1e-5)
        assert_close(outputs(ConvS2SPlan(model)), after, rtol=0, atol=0)


@torch.no_grad()
def test_training_mode_is_noticed():
    model, batch = make({"dropout": 0.5}), make_batch([6], [4])
    plan = ConvS2SPlan(model)
    state = plan.start(plan.encode(batch.source))
    model.train()
    memory = plan.encode(batch.source)
    assert not torch.equal(memory.states, plan.encode(batch.source).states)
    with pytest.raises(RuntimeError):
        plan.step(batch.prefix[:, 0], state, memory)
    model.eval()
    assert_close(outputs(plan), outputs(model), rtol=1e-5, atol=1e-5)


def test_a_state_without_gradients_is_refused_where_gradients_are_enabled():
    plan, batch = ConvS2SPlan(make({})), make_batch([6, 3], [4, 4])
    with torch.no_grad():
        memory = plan.encode(batch.source)
        state = plan.start(memory)
    with pytest.raises(RuntimeError):
        plan.step(batch.prefix[:, 0], state, memory)


@torch.no_grad()
def test_a_copied_state_can_be_stepped_alone():
    plan, batch = ConvS2SPlan(make({})), make_batch([6, 3], [4, 4])
    memory = plan.encode(batch.source)
    state = plan.step(batch.prefix[:, 0], plan.start(memory), memory).state
    copied = copy.deepcopy(state)
    expected = plan.step(batch.prefix[:, 1], state, memory).output
    del state
    assert torch.equal(plan.step(batch.prefix[:, 1], copied, memory).output, expected)
