from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from ops.comparison import CLOSE, SHAPES, outputs_and_gradients
from saccade.ops.bias_activation import bias_relu

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_relu(shape):
    x, bias = torch.randn(shape), torch.randn(shape[1])
    expected = outputs_and_gradients(lambda a, b: F.relu(a + b), x, bias)
    assert_close(outputs_and_gradients(bias_relu, x, bias), expected, **CLOSE)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_are_kept(bad):
    x = torch.zeros(3, 20)
    x[1, 4] = bad
    assert not torch.isfinite(bias_relu(x, torch.zeros(20))[1, 4])


def test_no_rows():
    assert bias_relu(torch.zeros(0, 8), torch.zeros(8)).shape == (0, 8)
