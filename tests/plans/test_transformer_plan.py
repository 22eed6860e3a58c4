"""An encoder or a decoder step in one kernel call, compared with the model on PyTorch references."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.interface import Source, reorder
from saccade.ops.dispatch import without_kernels
from saccade.plans.transformer_plan import MAX_FUSED_HYPOTHESES, MAX_FUSED_POSITIONS, TransformerPlan

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")

LENGTHS = [
    *([1], [7], [9, 2, 5], [3, 3, 3, 3], [40], [MAX_FUSED_POSITIONS], [MAX_FUSED_POSITIONS + 1], [40, 9]),
    *([1] * MAX_FUSED_HYPOTHESES, [1] * (MAX_FUSED_HYPOTHESES + 1)),
]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
SMALL = {"norm": "pre", "width": 20, "feed_forward": 43, "heads": 4, "encoder_layers": 3, "decoder_layers": 3}
FUSED_KERNELS = {"encoder_forward", "decoder_step"}


def steps_of(model, batch):
    """The states of the memory, then the output of each step."""
    memory = model.encode(batch.source)
    state, outputs = model.start(memory), [memory.states.masked_fill(~memory.mask[..., None], 0.0)]
    for token in batch.prefix.unbind(1):
        output, state, _ = model.step(token, state, memory)
        outputs.append(output)
    return outputs


def reference_steps(model, batch):
    with without_kernels():
        return steps_of(model, batch)


def model_with_random_vectors(changes):
    """A model in which biases and norms are random too."""
    model = build_model(("transformer", changes))
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("threads", [1, 3], ids="{} threads".format, indirect=True)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("width", "heads"), [(16, 4), (20, 1), (20, 4), (128, 4), (132, 4)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} of {max(lengths)}")
@torch.no_grad()
def test_encoder_and_steps(lengths, width, heads, norm, called_kernels):
    changes = {"norm": norm, "width": width, "feed_forward": 2 * width + 3, "heads": heads}
    model = model_with_random_vectors({**changes, "encoder_layers": 3, "decoder_layers": 3})
    batch = make_batch(lengths, [3] * len(lengths))
    found = steps_of(TransformerPlan(model), batch)
    assert ("encoder_forward" in called_kernels) == (sum(lengths) <= MAX_FUSED_POSITIONS)
    assert called_kernels.count("decoder_step") == (3 if len(lengths) <= MAX_FUSED_HYPOTHESES else 0)
    assert_close(found, reference_steps(model, batch), **CLOSE)


@torch.no_grad()
def test_steps_of_hypotheses_that_search_reorders(called_kernels):
    model, batch = model_with_random_vectors(SMALL), make_batch([5, 3], [4, 4])
    orders = torch.tensor([[2, 2, 0, 5, 3, 3], [1, 0, 2, 4, 4, 4], [0, 0, 0, 3, 4, 5]])

    def steps(model):
        memory = model.encode(batch.source)
        state = reorder(model.start(memory), torch.tensor([0, 0, 0, 1, 1, 1]), None)
        outputs = []
        for number, order in enumerate(orders):
            output, state, _ = model.step(torch.arange(4, 10) + number, state, memory)
            state = reorder(state, order, None)
            outputs.append(output)
        return outputs

    found = steps(TransformerPlan(model))
    assert called_kernels.count("decoder_step") == 3
    with without_kernels():
        assert_close(found, steps(model), **CLOSE)


@torch.no_grad()
def test_masks_with_gaps_and_empty_masks(called_kernels):
    model, values = build_model(("transformer", SMALL)), torch.randint(4, 9, (3, 6))
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    found = TransformerPlan(model).encode(Source(values, mask)).states
    assert "encoder_forward" in called_kernels
    with without_kernels():
        assert_close(found[mask], model.encode(Source(values, mask)).states[mask], **CLOSE)


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("count", [40, 99, 150])
@torch.no_grad()
def test_any_number_of_threads_gives_the_same_bits_in_int8(count):
    """Threads share the outputs of a product, or its rows."""
    plan = TransformerPlan(build_model(("transformer", {**SMALL, "width": 128})), quantize=True)
    batch, before, found = make_batch([3] * count, [4] * count), torch.get_num_threads(), []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        try:
            found.append(torch.stack(steps_of(plan, batch)[1:]))
        finally:
            torch.set_num_threads(before)
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


@torch.no_grad()
def test_several_python_threads_at_once():
    plan = TransformerPlan(build_model(("transformer", SMALL)))
    batches = [make_batch([n, 3], [4, 2]) for n in range(1, 20)]
    expected = [steps_of(plan, batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(torch.no_grad()(lambda batch: steps_of(plan, batch)), batches))
    assert_close(found, expected)


def test_a_plan_falls_back_to_the_model_with_gradients(called_kernels):
    model, batch = build_model(("transformer", SMALL)), make_batch([3, 2], [4, 4])
    found = steps_of(TransformerPlan(model), batch)
    assert not FUSED_KERNELS & set(called_kernels)
    weights = [model.decoder[0].attention.query_key_value.weight, model.decoder[1].cross.key_value.weight]
    expected = reference_steps(model, batch)
    assert_close(gradients(found, weights), gradients(expected, weights), **CLOSE)


def gradients(outputs, weights):
    return torch.autograd.grad(sum(output.square().sum() for output in outputs), weights)


@pytest.mark.parametrize(("part", "other"), [("encoder", "decoder_step"), ("decoder", "encoder_forward")])
@torch.no_grad()
def test_a_plan_falls_back_to_the_model_with_dropout(part, other, called_kernels):
    model, batch = build_model(("transformer", {**SMALL, "dropout": 0.5})), make_batch([3, 2], [4, 4])
    plan = TransformerPlan(model)
    getattr(model, part).train()
    called_kernels.clear()
    first, second = steps_of(plan, batch)[-1], steps_of(plan, batch)[-1]
    assert not torch.equal(first, second)
    assert FUSED_KERNELS & set(called_kernels) == {other}
    called_kernels.clear()
    model.train()
    steps_of(plan, batch)
    assert not FUSED_KERNELS & set(called_kernels)
    model.eval()
    steps_of(plan, batch)
    assert set(called_kernels) >= FUSED_KERNELS


@torch.no_grad()
def test_a_plan_falls_back_to_the_model_for_recording(called_kernels):
    model, batch = build_model(("transformer", SMALL)), make_batch([3, 2], [4, 4])
    plan = TransformerPlan(model)
    memory = plan.encode(batch.source, record=True)
    step = plan.step(batch.prefix[:, 0], plan.start(memory), memory, record=True)
    assert not FUSED_KERNELS & set(called_kernels)
    expected = model.encode(batch.source, record=True)
    assert_close([each.weights for each in memory.attention], [each.weights for each in expected.attention])
    expected = model.step(batch.prefix[:, 0], model.start(memory), memory, record=True)
    assert_close([each.weights for each in step.attention], [each.weights for each in expected.attention])


@torch.no_grad()
def test_a_state_that_was_started_without_kernels(called_kernels):
    model, batch = build_model(("transformer", SMALL)), make_batch([3, 2], [4, 4])
    plan = TransformerPlan(model)
    with without_kernels():
        memory = plan.encode(batch.source)
        state = plan.start(memory)
        expected = model.step(batch.prefix[:, 0], state, memory)
    assert_close(plan.step(batch.prefix[:, 0], state, memory).output, expected.output, **CLOSE)
    assert "decoder_step" not in called_kernels


@torch.no_grad()
def transpose_weights_in_memory(model):
    for layer in (*model.encoder, *model.decoder):
        linear = layer.feed_forward.expand
        linear.weight.data = linear.weight.t().contiguous().t()


@torch.no_grad()
def parametrize_weights(model):
    weight_norm(model.encoder[1].attention.output)
    weight_norm(model.decoder[0].cross.output)
    model.encoder[1].attention.output.parametrizations.weight.original0.mul_(1.5)


@torch.no_grad()
def set_epsilons(model):
    model.encoder[1].attention_residual.norm.eps = 0.5
    model.decoder[2].cross_residual.norm.eps = 0.3
    model.decoder_norm.eps = 0.2


@torch.no_grad()
def narrow_a_feed_forward_network(model):
    for layer in (model.encoder[1], model.decoder[1]):
        network = layer.feed_forward
        network.inner = network.expand.out_features = network.contract.in_features = 10
        network.expand.weight.data, network.expand.bias.data = network.expand.weight[:10], network.expand.bias[:10]
        network.contract.weight.data = network.contract.weight[:, :10].contiguous()


@pytest.mark.parametrize(
    "change", [transpose_weights_in_memory, parametrize_weights, set_epsilons, narrow_a_feed_forward_network]
)
@torch.no_grad()
def test_models_that_were_modified(change):
    model, batch = build_model(("transformer", SMALL)), make_batch([7, 3], [4, 4])
    before = steps_of(TransformerPlan(model), batch)
    change(model)
    found = steps_of(TransformerPlan(model), batch)
    assert_close(found, reference_steps(model, batch), **CLOSE)
    assert change is transpose_weights_in_memory or not torch.allclose(found[-1], before[-1], **CLOSE)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@torch.no_grad()
def test_nan_and_infinity_are_propagated(stack, bad, called_kernels):
    model, batch = build_model(("transformer", SMALL)), make_batch([5], [3])
    getattr(model, stack)[1].feed_forward.expand.weight[3] = bad
    assert not torch.isfinite(steps_of(TransformerPlan(model), batch)[-1]).all()
    assert set(called_kernels) >= FUSED_KERNELS
