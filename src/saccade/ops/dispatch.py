"""Whether an op runs on its kernel or on its PyTorch reference."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from saccade.ops.kernel_library import level, library

_lock = threading.Lock()
_disabled = 0  # callers that are inside of `without_kernels`


def runs_on_kernel(x: Tensor) -> bool:
    """Whether a kernel can run: float32 on the CPU, kernels built, no autocast, no graph that is being recorded."""
    ours = x.device.type == "cpu" and x.dtype == torch.float32 and not records_graph()
    return ours and kernels_in_use() and not torch.is_autocast_enabled("cpu")


def records_graph() -> bool:
    """Whether PyTorch traces or compiles: what a kernel computes would not be part of the graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[no-untyped-call]


def runs_on_inference_kernel(x: Tensor) -> bool:
    """Whether a kernel without a backward pass can run: as `runs_on_kernel`, with gradients disabled."""
    return not torch.is_grad_enabled() and runs_on_kernel(x)


def kernels_in_use() -> bool:
    """Whether the kernels are built for this machine and allowed."""
    return not _disabled and library() is not None


def kernel_level() -> str | None:
    """The instruction-set level of the kernels, v1 to v4; None without kernels."""
    return level()


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Run all ops on their PyTorch references, in every thread."""
    global _disabled
    with _lock:
        _disabled += 1
    try:
        yield
    finally:
        with _lock:
            _disabled -= 1
