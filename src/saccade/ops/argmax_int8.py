"""The largest logit of each row without computing all logits: an int8 screen with exact bounds.

Greedy search needs only the largest logit. The int8 output layer gives every logit with a known error bound; only the
few logits that could be the largest are then computed in float32. The token is the argmax of the float32 logits, up to
rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.ops.arguments import (
    address,
    require_no_gradient,
    require_same_dtype_and_device,
    require_shape,
    require_tokens,
)
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.int8_linear import QuantizedMatrix
from saccade.ops.kernel_library import kernel


def argmax_int8(
    x: Tensor, weight: QuantizedMatrix, suppressed: Sequence[int] = (), *, exact: bool = True
) -> tuple[Tensor, Tensor]:
    """The largest logit (N,) and its token (N,) of x (N, D) · weight^T + bias; -inf where all tokens are suppressed.

    Without `exact` the argmax is that of the int8 logits.
    """
    require_same_dtype_and_device("argmax_int8", x=x)
    require_no_gradient("argmax_int8", x)
    require_shape("argmax_int8", "x", x, None, weight.inputs)
    if not runs_on_kernel(x):
        raise TypeError(f"argmax_int8: x is {x.dtype} on {x.device}; int8 needs float32 on a CPU with kernels")
    require_tokens("argmax_int8", "suppressed", suppressed, weight.outputs)
    x, forbidden = x.contiguous(), torch.tensor(list(suppressed), dtype=torch.int64, device=x.device)
    values, tokens = x.new_empty(len(x)), x.new_empty(len(x), dtype=torch.int64)
    outputs = address(values), address(tokens)
    structure = ctypes.byref(weight.structure)
    kernel("argmax_int8", len(x), address(x), structure, exact, len(forbidden), address(forbidden), *outputs)
    return values, tokens


def argmax_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, suppressed: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """The PyTorch reference: all logits, then the largest."""
    logits = torch.nn.functional.linear(x, weight, bias)
    if suppressed:
        logits[:, list(suppressed)] = -torch.inf
    best = logits.max(dim=1)
    return best.values, best.indices
