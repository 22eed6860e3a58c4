from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from saccade.ops.glu import linear_glu

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")


@pytest.mark.parametrize("width", [1, 5, 16, 33, 128])
@torch.no_grad()
def test_gated_linear_units(width):
    x, residual = torch.randn(6, 3, 7) * 4, torch.randn(6, 3, width)
    weight, bias = torch.randn(2 * width, 7), torch.randn(2 * width)
    for given in ((), (residual, 0.7)):
        ours, reference = kernel_and_reference(lambda given=given: linear_glu(x, weight, bias, *given))
        assert_close(ours, reference, rtol=1e-4, atol=1e-5)
