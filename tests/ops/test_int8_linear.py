"""Linear layers with int8 weights, against float64 products of the rounded values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import (
    QuantizedMatrix,
    QuantizedParameter,
    int8_copy,
    int8_linear,
    int8_linear_reference,
    quantize,
)
from saccade.ops.linear import linear, packed_linear

pytestmark = pytest.mark.usefixtures("kernel_level", "int8_required", "seeded")


def int8_linear_of(weight: Tensor, x: Tensor) -> Tensor:
    return int8_linear(x, QuantizedMatrix(weight))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("rows", "ins", "outs"),
    [
        *((1, 1, 1), (1, 4, 16), (5, 3, 7), (6, 20, 64), (7, 128, 384), (50, 131, 130)),
        *((300, 256, 129), (300, 256, 60), (13, 128, 8003), (1, 1100, 1000)),
    ],
)
def test_int8_linear_is_the_product_of_the_rounded_values(rows, ins, outs):
    x, weight = torch.randn(rows, ins) * torch.rand(rows, 1) * 5, torch.randn(outs, ins) * torch.rand(outs, 1)
    found = int8_linear_of(weight, x).double()
    largest = x.norm(dim=1)[:, None] * weight.norm(dim=1)
    errors = [((found - int8_linear_reference(x, weight, levels)).abs() / largest).max() for levels in (127, 63)]
    assert min(errors) < 1e-2 / ins**0.5  # a few values are rounded the other way
    assert ((found - (x @ weight.t()).double()).abs() <= 0.03 * largest + 1e-6).all()


def test_a_row_does_not_depend_on_other_rows():
    x, weight = torch.randn(40, 24), torch.randn(50, 24)
    x[7] *= 1000
    table = QuantizedMatrix(weight)
    together = int8_linear(x.view(4, 10, 24), table).view(40, 50)
    assert torch.equal(together, torch.cat([int8_linear(row[None], table) for row in x]))


def test_zeros_nan_and_infinity():
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
def test_rows_of_any_size_do_not_change_others(size):
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
def test_the_largest_possible_sums(ins):
    x, weight = torch.ones(7, ins), torch.ones(20, ins)
    x[1:3] *= -1
    weight[5:9] *= -1
    assert_close(int8_linear_of(weight, x), x @ weight.t(), rtol=1e-5, atol=0.0)


def test_tensors_that_cannot_be_quantized():
    assert quantize(torch.randn(5)) is None
    assert quantize(torch.randn(4, 6).t()) is None
    assert quantize(torch.randn(4, 6).double()) is None
    assert quantize(torch.randn(0, 6)) is None
    with without_kernels():
        assert quantize(torch.randn(4, 6)) is None


def test_linear_ops_use_the_int8_form_where_no_gradient_is_needed():
    weight, bias, x = QuantizedParameter.of(torch.randn(8, 12)), torch.randn(8), torch.randn(20, 12)
    form, expected = int8_copy(weight), x @ weight.t()
    assert form is not None
    with torch.no_grad():
        assert torch.equal(packed_linear(x, weight), int8_linear(x, form))
        assert torch.equal(linear(x, weight, bias), int8_linear(x, form) + bias)
        assert not torch.equal(int8_linear(x, form), expected)
        with without_kernels():
            assert_close(linear(x, weight), expected)
    assert_close(packed_linear(x, weight), expected)
    assert_close(linear(x, weight), expected)


@torch.no_grad()
def test_the_int8_form_of_a_changed_weight_is_not_used():
    layer, x = nn.Linear(12, 8), torch.randn(20, 12)
    layer.weight = QuantizedParameter.of(layer.weight)
    layer.weight.mul_(-1)
    assert int8_copy(layer.weight) is None
    assert_close(packed_linear(x, layer.weight), x @ layer.weight.t())
    layer.weight = QuantizedParameter.of(layer.weight)
    assert int8_copy(layer.weight) is not None
    layer.load_state_dict(nn.Linear(12, 8).state_dict())
    assert_close(linear(x, layer.weight), x @ layer.weight.t())


@torch.no_grad()
def test_the_int8_form_of_a_weight_with_another_storage_is_not_used():
    layer, x = nn.Linear(12, 8), torch.randn(20, 12)
    layer.weight = QuantizedParameter.of(layer.weight)
    form = int8_copy(layer.weight)
    expected = int8_linear(x, form)
    layer.weight.data = torch.randn(8, 12)
    assert int8_copy(layer.weight) is None
    assert torch.equal(int8_linear(x, form), expected)  # its float32 original is still in memory


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="int8_linear"):
        int8_linear_of(torch.randn(8, 12), torch.randn(3, 11))
