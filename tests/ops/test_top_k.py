from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import CLOSE
from saccade.ops.top_k import top_k

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")


@pytest.mark.parametrize(("rows", "width", "count"), [(1, 1, 1), (3, 5, 5), (4, 40, 3), (7, 257, 10), (30, 8003, 10)])
def test_the_most_probable_tokens(rows, width, count):
    logits = torch.randn(rows, width) * 3
    suppressed = [0, width - 1] if width > 5 else []
    expected = logits.log_softmax(-1)
    expected[:, suppressed] = -torch.inf
    values, tokens = top_k(logits.clone(), count, suppressed)
    assert_close(values, expected.topk(count).values, **CLOSE)
    assert_close(expected.gather(1, tokens), values, **CLOSE)


def test_ties_go_to_the_lowest_id_and_suppressed_tokens_come_last():
    values, tokens = top_k(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 4, [3])
    assert tokens.tolist()[0][:3] == [1, 2, 0]
    assert values[0, 3] == -torch.inf


def test_a_row_with_nan_has_no_finite_value():
    values, _ = top_k(torch.tensor([[0.0, torch.nan, 1.0]]), 2, [])
    assert not values.isfinite().any()
