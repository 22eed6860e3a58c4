from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from ops.comparison import CLOSE, SHAPES, outputs_and_gradients
from saccade.ops.dropout import LEVELS, dropout_threshold
from saccade.ops.layer_norm import layer_norm, residual_layer_norm

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")

WIDER_THAN_ONE = [shape for shape in SHAPES if shape[1] > 1]
"""The norm of a row of one entry is rounding alone."""


@pytest.mark.parametrize("used", ["both", "total", "normed"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", WIDER_THAN_ONE)
def test_residual_sum_and_norm(shape, biased, used):
    x, sublayer = torch.randn(shape) * 3 + 1, torch.randn(shape)
    bias, weight, shift = (torch.randn(shape[1]) for _ in range(3))

    def combine(total, normed):
        return {"both": total * 0.5 + normed, "total": total + 0 * normed, "normed": normed}[used]

    def reference(a, b, c, d, e):
        total = a + (b + c * biased)
        return combine(total, F.layer_norm(total, shape[1:], d, e, 1e-5))

    def ours(a, b, c, d, e):
        return combine(*residual_layer_norm(a, b, c if biased else None, d, e, 1e-5)) + 0 * c.sum()

    leaves = x, sublayer, bias, weight, shift
    expected = outputs_and_gradients(reference, *leaves)
    assert_close(outputs_and_gradients(ours, *leaves), expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_residual_sum_with_dropout(shape):
    """The entries that the forward pass drops, and no others, have no gradient."""
    x, sublayer, bias = torch.zeros(shape), torch.rand(shape) + 1, torch.rand(shape[1])
    weight, shift = torch.ones(shape[1]), torch.zeros(shape[1])
    out, (x_grad, sublayer_grad, bias_grad) = outputs_and_gradients(
        lambda a, b, c: residual_layer_norm(a, b, c, weight, shift, 1e-5, probability=0.3)[0], x, sublayer, bias
    )
    factor = out / (sublayer + bias)
    assert_close(factor, (factor > 0).float() * LEVELS / (LEVELS - dropout_threshold(0.3)), **CLOSE)
    assert_close(sublayer_grad, x_grad * factor, **CLOSE)
    assert_close(bias_grad, (x_grad * factor).sum(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", WIDER_THAN_ONE)
def test_layer_norm(shape):
    leaves = torch.randn(shape) * 3 + 1, torch.randn(shape[1]), torch.randn(shape[1])
    expected = outputs_and_gradients(lambda a, b, c: F.layer_norm(a, shape[1:], b, c, 1e-5), *leaves)
    assert_close(outputs_and_gradients(lambda *x: layer_norm(*x, 1e-5), *leaves), expected, rtol=1e-3, atol=1e-4)


def test_the_epsilon_of_a_module():
    norm, x = nn.LayerNorm(12, eps=0.5), torch.randn(4, 12)
    assert_close(layer_norm(x, norm.weight, norm.bias, norm.eps), norm(x))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_stay_in_their_row(bad):
    x = torch.zeros(3, 20)
    x[1, 4] = bad
    normed = layer_norm(x, torch.ones(20), torch.zeros(20), 1e-5)
    assert torch.isfinite(normed).all(1).tolist() == [True, False, True]


def test_no_rows():
    assert layer_norm(torch.zeros(0, 8), torch.zeros(8), torch.zeros(8), 1e-5).shape == (0, 8)
