"""An op against PyTorch: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from saccade.ops.dispatch import without_kernels

SHAPES = [(1, 1), (3, 5), (7, 16), (5, 33), (200, 128), (130, 257)]
"""Numbers of rows and widths; some are multiples of the vector width of a kernel."""

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def outputs_and_gradients(function: Callable[..., Tensor], *leaves: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output of a function and its gradients, with the same random gradient of the output for the same shape."""
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    out = function(*(leaf * 1.0 for leaf in leaves))  # some functions overwrite their arguments
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return out.detach(), torch.autograd.grad(out, leaves, gradient)


def kernel_and_reference(function: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the results of a function with and without kernels."""
    with without_kernels():
        reference = function()
    return function(), reference
