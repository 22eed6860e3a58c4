"""Argument checks of the ops: a kernel reads memory by address, so shapes and indices are checked before it runs."""

from __future__ import annotations

import torch
from torch import Tensor


def require_alike(op: str, **tensors: Tensor | None) -> None:
    """Raise TypeError unless all floating-point tensors have one dtype (except under autocast) and one device."""
    first_name, first = next((name, x) for name, x in tensors.items() if x is not None)
    for name, x in tensors.items():
        if x is None:
            continue
        if not x.is_floating_point():
            raise TypeError(f"{op}: {name} has dtype {x.dtype}, expected floating point")
        if x.device != first.device:
            raise TypeError(f"{op}: {name} is on {x.device}, {first_name} on {first.device}")
        if x.dtype != first.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{op}: {name} has dtype {x.dtype}, {first_name} has {first.dtype}")


def require_shape(op: str, name: str, x: Tensor, *shape: int | None) -> None:
    """Raise ValueError unless a tensor has this shape; None means any size."""
    if x.dim() != len(shape) or any(size is not None and size != own for size, own in zip(shape, x.shape, strict=True)):
        expected = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}, expected ({expected})")


def require_indices(op: str, name: str, x: Tensor, size: int, *, device: torch.device) -> None:
    """Raise unless a tensor holds int64 indices of a dimension of this size."""
    if x.dtype != torch.int64:
        raise TypeError(f"{op}: {name} has dtype {x.dtype}, expected torch.int64")
    if x.device != device:
        raise TypeError(f"{op}: {name} is on {x.device}, expected {device}")
    if x.device.type == "cpu" and x.numel():  # elsewhere PyTorch checks, and this would synchronize
        low, high = torch.aminmax(x)
        if int(low) < 0 or int(high) >= size:
            raise IndexError(f"{op}: {name} has the index {int(low) if int(low) < 0 else int(high)}, size {size}")


def require_heads(op: str, width: int, heads: int) -> None:
    """Raise ValueError unless the width is a multiple of the number of heads."""
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"{op}: {heads} heads do not divide a width of {width}")


def address(x: Tensor | None) -> int | None:
    """The data pointer of a contiguous tensor on the CPU, for a kernel; None for None."""
    if x is None:
        return None
    if not x.is_contiguous():
        raise ValueError(f"a kernel cannot read a tensor with strides {x.stride()} for shape {tuple(x.shape)}")
    return row_address(x)


def row_address(x: Tensor) -> int:
    """The data pointer of a tensor on the CPU whose last dimension is contiguous; a kernel also needs its stride."""
    if not x.is_cpu:
        raise TypeError(f"a kernel cannot read a tensor on {x.device}")
    if x.numel() > 1 and x.size(-1) > 1 and x.stride(-1) != 1:
        raise ValueError(f"a kernel cannot read rows with strides {x.stride()}")
    return x.data_ptr()
