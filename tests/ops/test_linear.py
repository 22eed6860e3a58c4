from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from ops.comparison import CLOSE, outputs_and_gradients
from saccade.ops.linear import MAX_ROWS, linear, packed_linear

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")


def test_packed_linear():
    x, weight = torch.randn(50, 24), torch.randn(36, 24)
    expected = outputs_and_gradients(F.linear, x, weight)
    assert_close(outputs_and_gradients(packed_linear, x, weight), expected, **CLOSE)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "ins", "outs"), [(1, 5, 3), (1, 1030, 1025), (7, 300, 1000), (MAX_ROWS, 130, 77)])
@torch.no_grad()
def test_a_few_rows(rows, ins, outs, biased):
    x, weight, bias = torch.randn(rows, ins), torch.randn(outs, ins), torch.randn(outs) if biased else None
    assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
