from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import CLOSE, kernel_and_reference
from saccade.ops.cross_entropy import loss_and_grad, losses_of, paired_loss_and_grad

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")

SHAPES = [(1, 2), (3, 5), (7, 16), (5, 33), (40, 1000), (9, 8003)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient(shape, smoothing):
    logits, targets = torch.randn(shape) * 4, torch.randint(0, shape[1], shape[:1])
    leaf = logits.clone().requires_grad_()
    target, mean = losses_of(leaf.log_softmax(-1), targets)
    ((1 - smoothing) * target + smoothing * mean).sum().backward()
    ours = loss_and_grad(logits.clone(), targets, smoothing, True)
    assert_close(ours[:3], (target.detach(), mean.detach(), leaf.grad), **CLOSE)
    kept = logits.clone()
    assert_close(loss_and_grad(kept, targets, smoothing, False)[:2], ours[:2], rtol=0, atol=0)
    assert torch.equal(kept, logits)


@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient_of_pairs(shape):
    pairs, width = shape
    logits, targets = torch.randn(2 * pairs, width) * 4, torch.randint(0, width, (pairs,)).repeat(2)
    ours, reference = kernel_and_reference(lambda: paired_loss_and_grad(logits.clone(), targets, 0.1, 1.7, True))
    assert_close(ours, reference, rtol=1e-4, atol=1e-4)
    kept = logits.clone()
    found = paired_loss_and_grad(kept, targets, 0.1, 1.7, False)
    assert_close((*found[:2], found[3]), (*ours[:2], ours[3]), rtol=0, atol=0)
    assert torch.equal(kept, logits)


def test_extreme_logits():
    logits = torch.tensor([[0.0, 400.0, -400.0], [1e30, 1e30, 0.0]])
    found = loss_and_grad(logits.clone(), torch.tensor([2, 1]), 0.0, True)
    assert_close(found.target, torch.tensor([800.0, 0.69314718]))
    assert_close(found.gradient, torch.tensor([[0.0, 1.0, -1.0], [0.5, -0.5, 0.0]]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_stay_in_their_row(bad):
    logits = torch.zeros(2, 40)
    logits[0, 7] = bad
    found = loss_and_grad(logits, torch.tensor([3, 3]), 0.1, True)
    assert torch.isfinite(found.mean + found.target).tolist() == [False, True]
