"""Ops without a backward pass refuse tensors that need a gradient, or run their reference; no leaf is overwritten."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.bias_activation import bias_relu
from saccade.ops.cross_entropy import loss_and_grad, paired_loss_and_grad
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import QuantizedMatrix, int8_linear
from saccade.ops.layer_norm import residual_layer_norm
from saccade.ops.top_k import top_k

pytestmark = pytest.mark.usefixtures("kernels_required", "seeded")


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("op", [int8_linear, argmax_int8])
def test_int8_ops_refuse_to_lose_a_gradient(op):
    weight, x = QuantizedMatrix(torch.randn(8, 12)), torch.randn(3, 12).requires_grad_()
    with pytest.raises(RuntimeError):
        op(x, weight)
    op(x.detach(), weight)
    with torch.no_grad():
        op(x, weight)


def test_ops_that_return_a_gradient_refuse_to_lose_one():
    logits, targets = torch.randn(4, 7).requires_grad_(), torch.tensor([0, 6, 3, 1])
    for choice in (contextlib.nullcontext, without_kernels):
        with choice(), pytest.raises(RuntimeError):
            loss_and_grad(logits, targets, 0.1, True)
        with choice(), pytest.raises(RuntimeError):
            paired_loss_and_grad(logits, targets, 0.1, 1.0, True)


def test_top_k_of_logits_that_need_a_gradient():
    logits = torch.randn(4, 40).requires_grad_()
    kept = logits.detach().clone()

    def gradient():
        values, _ = top_k(logits, 3)
        return torch.autograd.grad(values.sum(), logits)[0]

    found, expected = kernel_and_reference(gradient)
    assert_close(found, expected)
    assert torch.equal(logits, kept)


def test_leaves_are_not_overwritten():
    x, sublayer, bias = torch.randn(5, 8), torch.randn(5, 8).requires_grad_(), torch.randn(8)
    kept = sublayer.detach().clone()

    def rectified():
        out = bias_relu(sublayer, bias)
        return out.detach(), torch.autograd.grad(out.square().sum(), sublayer)[0]

    def normalized():
        out = residual_layer_norm(x, sublayer, None, bias, bias, 1e-5)
        return out[1].detach(), torch.autograd.grad(sum(part.square().sum() for part in out), sublayer)[0]

    for function in (rectified, normalized):
        assert_close(*kernel_and_reference(function), rtol=1e-4, atol=1e-5)
        assert torch.equal(sublayer, kept)
