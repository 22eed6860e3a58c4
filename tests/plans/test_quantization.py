"""Models with int8 weights, against their float32 originals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.interface import Source
from saccade.layers.convolution import Projection
from saccade.models.registry import FAMILIES
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import QuantizedParameter
from saccade.plans.plan_selection import plan_for
from saccade.plans.quantization import quantized_copy
from saccade.plans.transformer_plan import TransformerPlan

pytestmark = pytest.mark.usefixtures("kernel_level", "int8_required", "seeded")


def test_a_copy_has_int8_matrices_and_shares_all_tensors():
    model = build_model(("transformer", {}))
    copied = quantized_copy(model)
    assert type(copied) is type(model)
    for (name, own), (other, parameter) in zip(copied.named_parameters(), model.named_parameters(), strict=True):
        assert name == other
        assert own.data_ptr() == parameter.data_ptr()
        assert isinstance(own, QuantizedParameter) == (parameter.dim() == 2)
        assert type(parameter) is nn.Parameter
    assert copied.source_embedding.table is copied.target_embedding.table is copied.output.table  # still shared
    for own, buffer in zip(copied.buffers(), model.buffers(), strict=True):
        assert own is buffer


@torch.no_grad()
def test_an_int8_transformer_is_close_to_float32_by_steps_and_by_decode():
    model = build_model(("transformer", {"norm": "pre", "width": 64, "feed_forward": 128, "heads": 4}))
    plan, batch = TransformerPlan(model, quantize=True), make_batch([7, 4, 1, 5], [6, 3, 5, 2])
    memory = model.encode(batch.source)
    exact = model.logits(model.decode(batch.prefix, memory).outputs)
    memory = plan.encode(batch.source)
    full = plan.decode(batch.prefix, memory).outputs
    error = (plan.logits(full) - exact)[batch.target_mask].abs().max()
    assert 0 < error < 0.1 * exact.abs().max()
    assert plan.compiled.output_int8 is not None
    assert plan.compiled.decoder.int8
    state = plan.start(memory)
    for position, token in enumerate(batch.prefix.unbind(1)):
        output, state, _ = plan.step(token, state, memory)
        real = batch.target_mask[:, position]
        # A different order of summation rounds differently, and may change int8 values.
        assert_close(output[real], full[real, position], rtol=0, atol=0.1)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_int8_logits_of_every_family_are_close_to_float32(family):
    model, batch = build_model((family, {})), make_batch([5, 3], [4, 2])

    def first_logits(model) -> Tensor:
        memory = model.encode(batch.source)
        return model.logits(model.step(batch.prefix[:, 0], model.start(memory), memory).output)

    exact, found = first_logits(model), first_logits(plan_for(model, quantize=True))
    assert not torch.equal(found, exact)
    assert (found - exact).abs().max() < 0.1 * exact.abs().max()
    quantized = quantized_copy(model)
    assert sum(isinstance(parameter, QuantizedParameter) for parameter in quantized.parameters()) > 2
    with without_kernels():
        assert_close(first_logits(quantized), exact, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_int8_states_of_convs2s_do_not_depend_on_the_batch():
    plan = plan_for(build_model(("convs2s", {"weight_normalization": False})), quantize=True)
    source = make_batch([5], [2]).source
    assert isinstance(source.values, Tensor)
    together = plan.encode(Source(source.values.repeat(20, 1), source.mask.repeat(20, 1)))  # all tokens repeat
    assert_close(together.states, plan.encode(source).states.expand(20, -1, -1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("weight_normalization", [False, True])
def test_int8_matrices_of_a_convs2s_plan(weight_normalization):
    """Weights with weight normalization stay float32, all others are int8."""
    model = build_model(("convs2s", {"weight_normalization": weight_normalization}))
    compiled = plan_for(model, quantize=True).compiled.model
    projections = [part for part in compiled.modules() if isinstance(part, Projection)]
    kinds = {isinstance(part.weight(), QuantizedParameter) for part in projections}
    assert kinds == {not weight_normalization}
    assert isinstance(compiled.output_table, QuantizedParameter)
