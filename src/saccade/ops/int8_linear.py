"""Linear layers with int8 weights, dynamically quantized inputs and float32 outputs; CPU inference only.

A weight has one scale per output, an input one per row, both symmetric: w ≈ s·q, x ≈ t·p, w·x ≈ s·t·(q·p). A row's
result does not depend on the other rows of the batch.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from saccade.ops.arguments import (
    address,
    require_no_gradient,
    require_same_dtype_and_device,
    require_shape,
    require_width,
)
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.kernel_abi import Int8Weight
from saccade.ops.kernel_library import kernel, library

MAX_INPUTS = 65536
"""The maximum input width: a sum of this many int8 products fits into 32 bits."""


class QuantizedMatrix:
    """A weight (outputs, inputs) in int8, packed for the kernel, with its float32 original and its bias (outputs,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        require_shape("QuantizedMatrix", "weight", weight, None, None)
        self.outputs, self.inputs = weight.shape
        if bias is not None:
            require_same_dtype_and_device("QuantizedMatrix", weight=weight, bias=bias)
            require_shape("QuantizedMatrix", "bias", bias, self.outputs)
            bias = bias.contiguous()
        if not quantizable(weight):
            raise ValueError(f"a weight of shape {tuple(weight.shape)} and {weight.dtype} cannot be quantized")
        panel, panels, depth = panel_sizes()
        count = -(-self.outputs // (panel * panels)) * panels
        # Scales and biases of all outputs, and two bounds of each panel.
        numbers = weight.new_empty(2 * count * (panel + 1))
        packed = weight.new_empty(count * panel * -(-self.inputs // depth) * depth, dtype=torch.uint8)
        self.version = version_of(weight)
        self.tensors = weight.detach(), bias, numbers, packed  # kept alive: the structure has their addresses
        firsts = 0, count * panel, 2 * count * panel, 2 * count * panel + count
        pointers = address(weight), address(bias), address(packed)
        self.structure = Int8Weight(*weight.shape, *pointers, *(address(numbers[first:]) for first in firsts))
        kernel("int8_pack", ctypes.byref(self.structure))

    def is_of(self, weight: Tensor) -> bool:
        """Whether this is the int8 copy of a weight, unchanged since it was quantized."""
        return self.version == version_of(weight)


class QuantizedParameter(nn.Parameter):
    """A float32 parameter with its int8 copy: `linear` multiplies by the int8 copy where no gradient is needed."""

    quantized: QuantizedMatrix

    @classmethod
    def of(cls, weight: Tensor) -> QuantizedParameter:
        """Quantize a weight (outputs, inputs); the float32 values share its memory."""
        found = torch.Tensor._make_subclass(cls, weight.detach(), False)
        found.quantized = QuantizedMatrix(found.detach())
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedParameter:
        """Quantize a copy: the int8 copy has the address of its float32 original."""
        memo[id(self)] = found = QuantizedParameter.of(self.detach().clone())
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Serialize the float32 parameter alone."""
        return nn.Parameter(self.detach(), requires_grad=False).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def int8_copy(weight: Tensor) -> QuantizedMatrix | None:
    """The int8 copy of a weight, if it has one and the float32 values have not changed since."""
    found: QuantizedMatrix | None = getattr(weight, "quantized", None)
    return found if found is not None and found.is_of(weight) else None


def quantize(weight: Tensor, bias: Tensor | None = None) -> QuantizedMatrix | None:
    """The int8 copy of a weight (outputs, inputs), or None where the kernels cannot hold it."""
    return QuantizedMatrix(weight, bias) if quantizable(weight) else None


def int8_linear(x: Tensor, weight: QuantizedMatrix) -> Tensor:
    """x (..., inputs) times the transposed int8 weight: (..., outputs), without the bias."""
    require_same_dtype_and_device("int8_linear", x=x)
    require_no_gradient("int8_linear", x)
    require_width("int8_linear", "x", x, weight.inputs)
    if not runs_on_kernel(x):
        raise TypeError(f"int8_linear: x is {x.dtype} on {x.device}; int8 needs float32 on a CPU with kernels")
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], weight.outputs)
    rows = x.numel() // x.size(-1)
    kernel("int8_linear", rows, address(x), ctypes.byref(weight.structure), address(out))
    return out


def int8_linear_reference(x: Tensor, weight: Tensor, levels: int = 127) -> Tensor:
    """The PyTorch reference in float64: both sides rounded to `levels` steps (63 on AVX2), then multiplied."""

    def rounded(rows: Tensor, top: int) -> Tensor:
        scales = rows.abs().amax(-1, keepdim=True) / top
        return (rows / scales.clamp(min=1e-30)).round() * scales

    return rounded(x.double(), levels) @ rounded(weight.double(), 127).t()


def int8_available() -> bool:
    """Whether this processor and the compiled kernels have int8 products."""
    return library() is not None and panel_sizes()[0] > 0


def panel_sizes() -> tuple[int, int, int]:
    """Outputs per panel, and the multiples of panels and of inputs that are stored; zeros without int8 products."""
    sizes = [ctypes.c_int64() for _ in range(3)]
    kernel("int8_panel_sizes", *map(ctypes.byref, sizes))
    panel, panels, depth = (size.value for size in sizes)
    return panel, panels, depth


def quantizable(weight: Tensor) -> bool:
    """Whether a tensor is a matrix that the int8 kernels can hold."""
    matrix = weight.dim() == 2 and weight.numel() > 0 and weight.is_contiguous() and weight.size(1) <= MAX_INPUTS
    return matrix and runs_on_kernel(weight) and int8_available()


def version_of(weight: Tensor) -> tuple[int, int]:
    """A pair that changes with every in-place change of a weight (writes through `.data` are not noticed)."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version
