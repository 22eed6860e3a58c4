from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from saccade.ops.dropout import dropout

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")


@pytest.mark.parametrize("count", [1, 31, 32, 100, 70_001])
def test_the_backward_pass_drops_the_same_entries(count):
    x = torch.ones(count, requires_grad=True)
    out = dropout(x, 0.25, training=True)
    out.sum().backward()
    assert torch.equal(out.detach(), x.grad)
    kept = out.detach()[out.detach() > 0]
    assert_close(kept, torch.full_like(kept, 4 / 3))


def test_entries_are_dropped_independently():
    x = torch.ones(400, 1000)
    first, second = (dropout(x, 0.3, training=True) > 0 for _ in range(2))
    assert abs(first.float().mean() - 0.7) < 0.003
    pairs = (first, second), (first[:, 1:], first[:, :-1]), (first[:, 16:], first[:, :-16]), (first[1:], first[:-1])
    for one, other in pairs:
        assert abs((one & other).float().mean() - 0.49) < 0.004
    assert (first.float().mean(0) - 0.7).abs().max() < 0.12  # 400 draws a column: five standard deviations


def test_the_seed_of_torch_is_the_seed_of_dropout():
    x = torch.ones(1000)
    torch.manual_seed(5)
    first = dropout(x, 0.5, training=True)
    assert not torch.equal(first, dropout(x, 0.5, training=True))
    torch.manual_seed(5)
    assert torch.equal(first, dropout(x, 0.5, training=True))
