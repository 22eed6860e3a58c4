"""Products with weights in bytes, against those of floats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.interface import Source
from saccade.models.registry import FAMILIES
from saccade.ops import int8_linear as subject
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import QuantizedMatrix, int8_linear, int8_linear_reference, quantize, quantized_form
from saccade.ops.linear import linear, packed_linear
from saccade.plans.quantization import quantize_model


@pytest.fixture(autouse=True)
def products_of_bytes(level: str) -> None:
    if not subject.panel_sizes()[0]:
        pytest.skip(f"{level} has no products of bytes")


def bytes_of(weight: Tensor) -> QuantizedMatrix:
    found = quantize(weight)
    assert found is not None
    return found


def int8_linear_of(weight: Tensor, x: Tensor) -> Tensor:
    return int8_linear(x, bytes_of(weight))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("rows", "ins", "outs"),
    [
        *((1, 1, 1), (1, 4, 16), (5, 3, 7), (6, 20, 64), (7, 128, 384), (50, 131, 130)),
        *((300, 256, 129), (300, 256, 60), (13, 128, 8003), (1, 1100, 1000)),
    ],
)
def test_it_is_the_product_of_what_was_rounded(rows, ins, outs, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, weight = torch.randn(rows, ins) * torch.rand(rows, 1) * 5, torch.randn(outs, ins) * torch.rand(outs, 1)
    found = int8_linear_of(weight, x).double()
    torch.set_num_threads(before)
    largest = x.norm(dim=1)[:, None] * weight.norm(dim=1)
    errors = [((found - int8_linear_reference(x, weight, levels)).abs() / largest).max() for levels in (127, 63)]
    assert min(errors) < 1e-2 / ins**0.5  # a few roundings to the other side
    assert ((found - (x @ weight.t()).double()).abs() <= 0.03 * largest + 1e-6).all()


def test_rows_do_not_depend_on_their_neighbours():
    x, weight = torch.randn(40, 24), torch.randn(50, 24)
    x[7] *= 1000
    table = bytes_of(weight)
    together = int8_linear(x.view(4, 10, 24), table).view(40, 50)
    assert torch.equal(together, torch.cat([int8_linear(row[None], table) for row in x]))


def test_zeros_and_what_is_no_number():
    x, weight = torch.zeros(4, 20), torch.randn(40, 20)
    x[1], x[2, 3], x[3, 4] = 1.0, torch.nan, torch.inf
    weight[17, 5] = torch.nan
    found = int8_linear_of(weight, x)
    assert torch.equal(found[0, :16], torch.zeros(16))
    assert not torch.isfinite(found[2:]).any()
    assert not torch.isfinite(found[:, 17]).any()
    others = [out for out in range(40) if out != 17]  # though they share a panel with it
    assert torch.isfinite(found[:2, others]).all()
    assert int8_linear_of(weight, x[:0]).shape == (0, 40)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1e18, 1e22])
def test_rows_of_any_size_leave_the_others_as_they_are(size):
    x, weight = torch.randn(8, 20), torch.randn(40, 20)
    expected = int8_linear_of(weight, x)
    weight[3] *= size
    x[5] *= size
    found = int8_linear_of(weight, x)
    assert torch.isfinite(found[:5]).all()
    assert torch.isfinite(found[5, 4:]).all()
    kept = [out for out in range(40) if out != 3]
    assert torch.equal(found[:5, kept], expected[:5, kept])
    bound = 0.03 * x.norm(dim=1)[:, None] * weight.norm(dim=1) + 1e-12
    assert ((found - x @ weight.t()).abs()[:5] <= bound[:5]).all()


@pytest.mark.parametrize("ins", [4, 4099, 65536])
def test_the_largest_sums_there_can_be(ins):
    x, weight = torch.ones(7, ins), torch.ones(20, ins)
    x[1:3] *= -1
    weight[5:9] *= -1
    assert_close(int8_linear_of(weight, x), x @ weight.t(), rtol=1e-5, atol=0.0)


def test_what_has_no_form_quantize():
    assert quantize(torch.randn(5)) is None
    assert quantize(torch.randn(4, 6).t()) is None
    assert quantize(torch.randn(4, 6).double()) is None
    assert quantize(torch.randn(0, 6)) is None
    with without_kernels():
        assert quantize(torch.randn(4, 6)) is None


def test_products_take_the_bytes_beside_a_weight_unless_they_learn():
    layer, x = nn.Linear(12, 8), torch.randn(20, 12)
    assert quantize_model(layer) == 1
    beside = quantized_form(layer.weight)
    assert beside is not None
    expected = x @ layer.weight.t()
    with torch.no_grad():
        assert torch.equal(packed_linear(x, layer.weight), int8_linear(x, beside))
        assert torch.equal(linear(x, layer.weight, layer.bias), int8_linear(x, beside) + layer.bias)
        assert not torch.equal(int8_linear(x, beside), expected)
        with without_kernels():
            assert_close(linear(x, layer.weight), expected)
    assert_close(packed_linear(x, layer.weight), expected)
    assert_close(linear(x, layer.weight), expected)


@torch.no_grad()
def test_bytes_of_a_weight_that_was_changed_are_not_taken():
    layer, x = nn.Linear(12, 8), torch.randn(20, 12)
    quantize_model(layer)
    layer.weight.mul_(-1)
    assert quantized_form(layer.weight) is None
    assert_close(packed_linear(x, layer.weight), x @ layer.weight.t())
    quantize_model(layer)
    assert quantized_form(layer.weight) is not None
    layer.load_state_dict(nn.Linear(12, 8).state_dict())
    assert_close(linear(x, layer.weight), x @ layer.weight.t())


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="int8_linear"):
        int8_linear_of(torch.randn(8, 12), torch.randn(3, 11))


@torch.no_grad()
def test_a_model_by_bytes_is_nearly_the_same_however_many_rows_there_are():
    model = build_model(("transformer", {"norm": "pre", "width": 64, "feed_forward": 128, "heads": 4}))
    batch = make_batch([7, 4, 1, 5], [6, 3, 5, 2])
    memory = model.encode(batch.source)
    exact = model.logits(model.decode(batch.prefix, memory).outputs)
    assert quantize_model(model) > 10
    memory = model.encode(batch.source)
    whole = model.decode(batch.prefix, memory).outputs
    close = (model.logits(whole) - exact)[batch.target_mask].abs().max()
    assert 0 < close < 0.1 * exact.abs().max()
    assert model.native(memory).output_bytes is not None
    state = model.start(memory)
    for place, token in enumerate(batch.prefix.unbind(1)):
        output, state, _ = model.step(token, state, memory)
        real = batch.target_mask[:, place]
        assert_close(output[real], whole[real, place], rtol=0, atol=0.1)  # rounding decides which byte is the nearest


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_by_bytes_is_nearly_the_same(family):
    model, batch = build_model((family, {})), make_batch([5, 3], [4, 2])

    def first_logits() -> Tensor:
        memory = model.encode(batch.source)
        return model.logits(model.step(batch.prefix[:, 0], model.start(memory), memory).output)

    exact = first_logits()
    assert quantize_model(model) > 2
    found = first_logits()
    assert not torch.equal(found, exact)
    assert (found - exact).abs().max() < 0.1 * exact.abs().max()


@torch.no_grad()
def test_distinct_tokens_are_not_summed_up_from_bytes():
    model = build_model(("convs2s", {"weight_normalisation": False})).eval()
    assert quantize_model(model) > 2
    source = make_batch([5], [2]).source
    assert isinstance(source.values, Tensor)
    together = model.encode(Source(source.values.repeat(20, 1), source.mask.repeat(20, 1)))  # all tokens repeat
    assert_close(together.states, model.encode(source).states.expand(20, -1, -1), rtol=0, atol=1e-5)
