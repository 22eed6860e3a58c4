from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from saccade.layers.masks import padding_mask
from saccade.ops.single_head_attention import MAX_QUERIES, single_head_attention

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (3, 2, 7, 5, 9), (4, 1, 40, 33, 64), (2, MAX_QUERIES, 17, 16, 32)])
@torch.no_grad()
def test_kernel_and_reference(shape, additive):
    batch, queries, positions, width, depth = shape
    query, keys = torch.randn(batch, queries, width), torch.randn(batch, positions, width) * 2
    values, vector = torch.randn(batch, positions, depth), torch.randn(width) if additive else None
    mask = torch.rand(batch, positions) < 0.7  # anywhere, not only at the end
    mask[:, 0] = True
    ours, reference = kernel_and_reference(lambda: single_head_attention(query, keys, values, mask, vector))
    assert_close(ours, reference, rtol=1e-4, atol=2e-6)


@torch.no_grad()
def test_masked_positions_are_not_read():
    query, keys, values = torch.randn(3, 1, 4), torch.randn(3, 5, 4), torch.randn(3, 5, 6)
    mask = padding_mask(torch.tensor([5, 2, 0]), 5)
    expected = single_head_attention(query, keys, values, mask)
    hidden = ~mask[:, :, None]
    nan_outside = keys.masked_fill(hidden, torch.nan), values.masked_fill(hidden, torch.nan)
    found = single_head_attention(query, *nan_outside, mask)
    assert_close(found, expected, rtol=0, atol=0)
    assert found.context[2].eq(0).all()
    assert found.weights[2].eq(0).all()


@torch.no_grad()
def test_wrong_arguments_are_refused():
    query, keys, values = torch.randn(2, 1, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    with pytest.raises(ValueError, match="mask"):
        single_head_attention(query, keys, values, torch.ones(2, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="float64"):
        single_head_attention(query, keys.double(), values, torch.ones(2, 5, dtype=torch.bool))
