"""Call overhead of an op as an autograd.Function and as a torch.library custom op, on the same kernel.

    python -m bench.custom_op_cost

Layer normalization of 16 positions, the size of a decoding step: nearly all of the time is dispatch. The minimum of
several repetitions, in alternating order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from saccade.ops.arguments import address
from saccade.ops.kernel_library import kernel
from saccade.ops.layer_norm import LayerNormKernel

EPSILON = 1e-5
CALLS, REPETITIONS = 300, 20


@torch.library.custom_op("saccade_bench::layer_norm", mutates_args=())
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    normal, mean, inverse = torch.empty_like(x), x.new_empty(x.size(0)), x.new_empty(x.size(0))
    inputs, outputs = (address(x), None, None, 0, 0), map(address, (normal, mean, inverse))
    kernel("residual_norm", *x.shape, *inputs, address(weight), address(bias), EPSILON, *outputs)
    return normal, mean, inverse


@torch.library.custom_op("saccade_bench::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    inputs = map(address, (x, weight, mean, inverse, None, gradient))
    x_grad, weight_grad, bias_grad = map(address, gradients)
    kernel("residual_norm_backward", *x.shape, *inputs, 0, 0, x_grad, None, None, weight_grad, bias_grad)
    return gradients


def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(inputs[0], inputs[1], output[1], output[2])


def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return layer_norm_backward(*ctx.saved_tensors, gradient.contiguous())  # type: ignore[no-any-return]


torch.library.register_autograd("saccade_bench::layer_norm", backward, setup_context=setup_context)


def microseconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((16, 128), (128,), (128,)))
    implementations = {
        "autograd.Function": lambda: LayerNormKernel.apply(x, weight, bias, EPSILON),
        "custom op": lambda: layer_norm(x, weight, bias)[0],
    }
    for name, training in (("forward", False), ("forward and backward", True)):
        best = dict.fromkeys(implementations, float("inf"))
        with torch.set_grad_enabled(training):
            for _ in range(REPETITIONS):
                for kind, call in implementations.items():
                    full = (lambda call=call: call().sum().backward()) if training else call
                    best[kind] = min(best[kind], microseconds(full))
        print(f"{name}: " + ", ".join(f"{kind} {time:.1f} µs" for kind, time in best.items()))


if __name__ == "__main__":
    main()
