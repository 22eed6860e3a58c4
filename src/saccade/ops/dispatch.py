"""Whether an op runs on its kernel or on its PyTorch reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from saccade.csrc.library import level, library

allowed = True


def runs_on_kernel(x: Tensor) -> bool:
    """Whether a kernel can run: float32 on the CPU, kernels built, no autocast, not under torch.compile."""
    ours = not torch.compiler.is_compiling() and x.device.type == "cpu" and x.dtype == torch.float32
    return ours and kernels_in_use() and not torch.is_autocast_enabled("cpu")


def runs_on_inference_kernel(x: Tensor) -> bool:
    """Whether a kernel without a backward pass can run: as `runs_on_kernel`, with gradients disabled."""
    return not torch.is_grad_enabled() and runs_on_kernel(x)


def kernels_in_use() -> bool:
    """Whether the kernels are built for this machine and allowed."""
    return allowed and library() is not None


def kernel_level() -> str | None:
    """The instruction-set level of the kernels, v1 to v4; None without kernels."""
    return level()


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Run all ops on their PyTorch references, in every thread."""
    global allowed
    before, allowed = allowed, False
    try:
        yield
    finally:
        allowed = before
