"""Layer normalization, alone and fused with the residual sum and dropout before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from saccade.ops.arguments import (
    address,
    overwritable,
    require_probability,
    require_same_dtype_and_device,
    require_shape,
)
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.dropout import dropout, dropout_threshold
from saccade.ops.kernel_library import kernel
from saccade.ops.rng import draw_seed


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Layer normalization of each row of x (N, D)."""
    op, width = "layer_norm", weight.numel()
    require_same_dtype_and_device(op, x=x, weight=weight, bias=bias)
    require_shape(op, "x", x, None, width)
    require_shape(op, "weight", weight, width)
    require_shape(op, "bias", bias, width)
    if width and runs_on_kernel(x):
        return LayerNormKernel.apply(x, weight, bias, epsilon)  # type: ignore[no-any-return,no-untyped-call]
    return F.layer_norm(x, (width,), weight, bias, epsilon)


def residual_layer_norm(
    x: Tensor,
    sublayer: Tensor,
    sublayer_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    *,
    probability: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(total, LayerNorm(total)) with total = x + dropout(sublayer + sublayer_bias); x and sublayer (N, D).

    The kernel writes the total over `sublayer`, which must not be used afterwards. That is safe for the output of a
    matrix product, whose backward pass does not read it.
    """
    op, width = "residual_layer_norm", weight.numel()
    require_same_dtype_and_device(op, x=x, sublayer=sublayer, sublayer_bias=sublayer_bias, weight=weight, bias=bias)
    require_shape(op, "x", x, None, width)
    require_shape(op, "sublayer", sublayer, x.size(0), width)
    for name, vector in (("sublayer_bias", sublayer_bias), ("weight", weight), ("bias", bias)):
        if vector is not None:
            require_shape(op, name, vector, width)
    require_probability(op, "probability", probability)
    if width and runs_on_kernel(x):
        sublayer = overwritable(sublayer)
        sublayer_bias = sublayer.new_zeros(width) if sublayer_bias is None else sublayer_bias
        return ResidualLayerNormKernel.apply(  # type: ignore[no-any-return,no-untyped-call]
            x.contiguous(), sublayer, sublayer_bias, probability, weight, bias, epsilon
        )
    sublayer = sublayer if sublayer_bias is None else sublayer + sublayer_bias
    total = x + dropout(sublayer, probability, training=True)
    return total, F.layer_norm(total, (width,), weight, bias, epsilon)


class ResidualLayerNormKernel(torch.autograd.Function):
    """The fused residual sum and layer normalization on the kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sublayer: Tensor,
        sublayer_bias: Tensor,
        probability: float,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        """(total, LayerNorm(total)); the total is written over `sublayer`."""
        ctx.rng = dropout_threshold(probability), draw_seed() if probability else 0
        sublayer_bias, weight, bias = sublayer_bias.contiguous(), weight.contiguous(), bias.contiguous()
        normal, mean, inverse = torch.empty_like(x), x.new_empty(x.size(0)), x.new_empty(x.size(0))
        inputs = map(address, (x, sublayer, sublayer_bias))
        outputs = map(address, (normal, mean, inverse))
        kernel("residual_norm", *x.shape, *inputs, *ctx.rng, address(weight), address(bias), epsilon, *outputs)
        ctx.mark_dirty(sublayer)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sublayer, weight, mean, inverse)
        return sublayer, normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_grad: Tensor | None, normal_grad: Tensor | None) -> tuple[Any, ...]:
        """The gradients of x, sublayer, sublayer_bias, weight and bias."""
        total, weight, mean, inverse = ctx.saved_tensors
        normal_grad = torch.zeros_like(total) if normal_grad is None else normal_grad.contiguous()
        total_grad = None if total_grad is None else total_grad.contiguous()
        x_grad, sublayer_grad = torch.empty_like(total), torch.empty_like(total)
        sublayer_bias_grad, weight_grad, bias_grad = (torch.empty_like(weight) for _ in range(3))
        inputs = map(address, (total, weight, mean, inverse, total_grad, normal_grad))
        outputs = map(address, (x_grad, sublayer_grad, sublayer_bias_grad, weight_grad, bias_grad))
        kernel("residual_norm_backward", *total.shape, *inputs, *ctx.rng, *outputs)
        return x_grad, sublayer_grad, sublayer_bias_grad, None, weight_grad, bias_grad, None


class LayerNormKernel(torch.autograd.Function):
    """Layer normalization on the kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """x (N, D)."""
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        normal, mean, inverse = torch.empty_like(x), x.new_empty(x.size(0)), x.new_empty(x.size(0))
        inputs, outputs = (address(x), None, None, 0, 0), map(address, (normal, mean, inverse))
        kernel("residual_norm", *x.shape, *inputs, address(weight), address(bias), epsilon, *outputs)
        ctx.save_for_backward(x, weight, mean, inverse)
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradients of x, weight and bias."""
        x, weight, mean, inverse = ctx.saved_tensors
        gradient = gradient.contiguous()
        x_grad, weight_grad, bias_grad = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        inputs = map(address, (x, weight, mean, inverse, None, gradient))
        outputs = map(address, (x_grad, None, None, weight_grad, bias_grad))
        kernel("residual_norm_backward", *x.shape, *inputs, 0, 0, *outputs)
        return x_grad, weight_grad, bias_grad, None
