"""A few places through all layers of an encoder or a decoder in one call, against layer after layer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.csrc import library as kernels
from saccade.interface import Source
from saccade.models import transformer_rows
from saccade.ops.dispatch import without_kernels
from saccade.ops.linear import MOST_ROWS as FEW
from saccade.ops.linear import linear
from saccade.plans.quantization import quantize_model

MOST = transformer_rows.FEW_PLACES
SENTENCES = [[1], [7], [9, 2, 5], [3, 3, 3, 3], [40], [MOST], [MOST + 1], [40, 9]]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
SMALL = {"norm": "pre", "width": 20, "feed_forward": 43, "heads": 4, "encoder_layers": 3, "decoder_layers": 3}


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch):
    """Which of the two were done in one call."""
    seen = []

    def counted(name, one_call, *given):
        seen.append(name)
        return one_call(*given)

    for name in ("encode_few", "step_few"):
        monkeypatch.setattr(transformer_rows, name, partial(counted, name, getattr(transformer_rows, name)))
    return seen


def steps_of(model, batch):
    """The outputs of each step, and the memory's states first."""
    memory = model.encode(batch.source)
    state, outputs = model.start(memory), [memory.states.masked_fill(~memory.mask[..., None], 0.0)]
    for token in batch.prefix.unbind(1):
        output, state, _ = model.step(token, state, memory)
        outputs.append(output)
    return outputs


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("width", "heads"), [(16, 4), (20, 1), (20, 4), (40, 2), (128, 4), (132, 4)])
@pytest.mark.parametrize("lengths", SENTENCES, ids=str)
@torch.no_grad()
def test_an_encoder(lengths, width, heads, norm, calls):
    changes = {"norm": norm, "width": width, "feed_forward": 2 * width + 3, "heads": heads, "encoder_layers": 3}
    model = build_model(("transformer", changes)).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms too
    source = make_batch(lengths, [2] * len(lengths)).source
    with without_kernels():
        expected = model.encode(source).states
    found = model.encode(source).states
    assert len(calls) == (sum(lengths) <= MOST)
    assert_close(found[source.mask], expected[source.mask], **CLOSE)


@torch.no_grad()
def test_masks_with_holes_and_without_anything(calls):
    model = build_model(("transformer", SMALL))
    values = torch.randint(4, 9, (3, 6))
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    found = model.encode(Source(values, mask)).states
    with without_kernels():
        expected = model.encode(Source(values, mask)).states
    assert calls
    assert_close(found[mask], expected[mask], **CLOSE)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "ins", "outs"), [(1, 5, 3), (1, 1030, 1025), (7, 300, 1000), (FEW, 130, 77)])
@torch.no_grad()
def test_products_of_a_few_rows(rows, ins, outs, biased):
    x, weight, bias = torch.randn(rows, ins), torch.randn(outs, ins), torch.randn(outs) if biased else None
    assert_close(linear(x, weight, bias), F.linear(x, weight, bias), **CLOSE)


@pytest.mark.parametrize("count", [40, 99, 150])
@torch.no_grad()
def test_threads_share_many_hypotheses_by_bytes(count, level):
    """By their products, or by their rows; with the same bits."""
    if level == "v1":
        pytest.skip("this level has no products of bytes")
    model = build_model(("transformer", {**SMALL, "width": 128})).eval()
    assert quantize_model(model)
    batch, before, found = make_batch([3] * count, [4] * count), torch.get_num_threads(), []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        try:
            found.append(torch.stack(steps_of(model, batch)[1:]))
        finally:
            torch.set_num_threads(before)
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


@torch.no_grad()
def test_several_python_threads_at_once():
    model, batches = build_model(("transformer", SMALL)), [make_batch([n, 3], [4, 2]) for n in range(1, 20)]
    expected = [steps_of(model, batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert_close(list(pool.map(torch.no_grad()(lambda batch: steps_of(model, batch)), batches)), expected)


def test_whoever_learns_or_drops_units_takes_the_layers(calls):
    model, batch = build_model(("transformer", {**SMALL, "dropout": 0.5})), make_batch([3, 2], [4, 4])
    learnt = steps_of(model, batch)
    with without_kernels():
        expected = steps_of(model, batch)
    weights = [model.decoder[0].attention.query_key_value.weight, model.decoder[1].cross.key_value.weight]
    assert_close(gradients(learnt, weights), gradients(expected, weights), **CLOSE)
    with torch.no_grad():
        for part in (model, model.encoder, model.decoder):
            model.eval()
            part.train()
            first, second = steps_of(model, batch)[-1], steps_of(model, batch)[-1]
            assert not torch.equal(first, second)
        assert set(calls) == {"encode_few", "step_few"}  # the encoder while the decoder dropped units, and vice versa
        calls.clear()
        steps_of(model.train(), batch)
        assert not calls
        steps_of(model.eval(), batch)
    assert set(calls) == {"encode_few", "step_few"}


def gradients(outputs, weights):
    return torch.autograd.grad(sum(output.square().sum() for output in outputs), weights)


def lie_across(model):
    for layer in (*model.encoder, *model.decoder):
        linear = layer.feed_forward.expand
        linear.weight.data = linear.weight.t().contiguous().t()


def compute_a_weight(model):
    weight_norm(model.encoder[1].attention.output)
    weight_norm(model.decoder[0].cross.output)
    with torch.no_grad():
        model.encoder[1].attention.output.parametrizations.weight.original0.mul_(1.5)


def have_their_own_epsilon(model):
    model.encoder[1].attention_residual.norm.eps = 0.5
    model.decoder[2].cross_residual.norm.eps = 0.3
    model.decoder_norm.eps = 0.2


def lose_units(model):
    for layer in (model.encoder[1], model.decoder[1]):
        network = layer.feed_forward
        network.inner = network.expand.out_features = network.contract.in_features = 10
        network.expand.weight.data, network.expand.bias.data = network.expand.weight[:10], network.expand.bias[:10]
        network.contract.weight.data = network.contract.weight[:, :10].contiguous()


@pytest.mark.parametrize("change", [lie_across, compute_a_weight, have_their_own_epsilon, lose_units])
@torch.no_grad()
def test_layers_that_somebody_changed(change):
    model, batch = build_model(("transformer", SMALL)), make_batch([7, 3], [4, 4])
    untouched = steps_of(model, batch)
    change(model)
    found = steps_of(model, batch)
    with without_kernels():
        assert_close(found, steps_of(model, batch), **CLOSE)
    assert change is lie_across or not torch.allclose(found[-1], untouched[-1], **CLOSE)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@torch.no_grad()
def test_what_is_no_number_is_not_hidden(stack, bad, calls):
    model, batch = build_model(("transformer", SMALL)), make_batch([5], [3])
    getattr(model, stack)[1].feed_forward.expand.weight[3] = bad
    assert not torch.isfinite(steps_of(model, batch)[-1]).all()
    assert set(calls) == {"encode_few", "step_few"}


def test_a_library_with_other_structures_is_not_used(monkeypatch):
    level = kernels.level()
    assert kernels.load(level) is not None
    monkeypatch.setattr(kernels, "layouts", lambda _: [8] * 9)
    assert kernels.load(level) is None
