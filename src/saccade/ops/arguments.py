"""Argument checks of the ops: a kernel reads memory by address, so all arguments are checked before it runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def require_same_dtype_and_device(op: str, **tensors: Tensor | None) -> None:
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


def require_width(op: str, name: str, x: Tensor, width: int) -> None:
    """Raise ValueError unless a tensor (..., width) has this last dimension."""
    if x.dim() < 1 or x.size(-1) != width:
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}, expected (..., {width})")


def require_integers(op: str, device: torch.device, **tensors: Tensor) -> None:
    """Raise TypeError unless all tensors are int64 and on this device."""
    for name, x in tensors.items():
        if x.dtype != torch.int64 or x.device != device:
            raise TypeError(f"{op}: {name} is {x.dtype} on {x.device}, expected torch.int64 on {device}")


def require_indices(op: str, name: str, x: Tensor, size: int, *, device: torch.device) -> None:
    """Raise unless a tensor holds int64 indices of a dimension of this size."""
    require_integers(op, device, **{name: x})
    if x.is_cpu and x.numel():  # elsewhere PyTorch checks, and this would synchronize
        low, high = torch.aminmax(x)
        if int(low) < 0 or int(high) >= size:
            raise IndexError(f"{op}: {name} has the index {int(low) if int(low) < 0 else int(high)}, size {size}")


def require_tokens(op: str, name: str, tokens: Sequence[int], vocabulary: int) -> None:
    """Raise unless all tokens are ids of a vocabulary of this size."""
    for token in tokens:
        if not isinstance(token, int):
            raise TypeError(f"{op}: {name} has the token {token!r}, expected integers")
        if not 0 <= token < vocabulary:
            raise IndexError(f"{op}: {name} has the token {token}, the vocabulary {vocabulary} tokens")


def require_mask(op: str, mask: Tensor, *shape: int | None, device: torch.device) -> None:
    """Raise unless a mask is a bool tensor of this shape on this device."""
    if mask.dtype != torch.bool or mask.device != device:
        raise TypeError(f"{op}: mask is {mask.dtype} on {mask.device}, expected torch.bool on {device}")
    require_shape(op, "mask", mask, *shape)


def require_heads(op: str, width: int, heads: int) -> None:
    """Raise ValueError unless the width is a multiple of the number of heads."""
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"{op}: {heads} heads do not divide a width of {width}")


def require_probability(op: str, name: str, probability: float) -> None:
    """Raise ValueError unless a probability is in [0, 1)."""
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"{op}: {name} is {probability}, expected a number in [0, 1)")


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether PyTorch records a graph for the result of an operation on these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def require_no_gradient(op: str, *tensors: Tensor) -> None:
    """Raise RuntimeError if a gradient is needed, for an op without a backward pass."""
    if needs_gradient(*tensors):
        raise RuntimeError(f"{op}: has no backward pass; call it under torch.no_grad() or on detached tensors")


def overwritable(x: Tensor) -> Tensor:
    """Return x contiguous, for a kernel that overwrites it; a copy of a leaf that needs a gradient."""
    x = x.contiguous()
    return x.clone() if x.requires_grad and x.is_leaf and torch.is_grad_enabled() else x


def address(x: Tensor | None) -> int | None:
    """The data pointer of a contiguous tensor on the CPU, for a kernel; None for None."""
    if x is None:
        return None
    if not x.is_contiguous():
        raise ValueError(f"a kernel cannot read a tensor with strides {x.stride()} for shape {tuple(x.shape)}")
    if not x.is_cpu:
        raise TypeError(f"a kernel cannot read a tensor on {x.device}")
    return x.data_ptr()


def row_address(x: Tensor) -> int:
    """The data pointer of a tensor on the CPU whose last dimension is contiguous; a kernel also needs its stride."""
    if not x.is_cpu:
        raise TypeError(f"a kernel cannot read a tensor on {x.device}")
    if x.numel() > 1 and x.size(-1) > 1 and x.stride(-1) != 1:
        raise ValueError(f"a kernel cannot read rows with strides {x.stride()}")
    return x.data_ptr()
