"""Choice between the kernel and the PyTorch reference of an op."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from saccade.ops.kernel_library import level, library

_allowed: ContextVar[bool] = ContextVar("kernels_allowed", default=True)


def runs_on_kernel(x: Tensor) -> bool:
    """Whether a kernel can run: float32 on the CPU, kernels built, no autocast, no graph that is being recorded."""
    ours = x.is_cpu and x.dtype == torch.float32 and not records_graph()
    return ours and kernels_in_use() and not torch.is_autocast_enabled("cpu")


def records_graph() -> bool:
    """Whether PyTorch traces or compiles: what a kernel computes would not be part of the graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[no-untyped-call]


def runs_on_inference_kernel(x: Tensor) -> bool:
    """Whether a kernel without a backward pass can run: as `runs_on_kernel`, with gradients disabled."""
    return not torch.is_grad_enabled() and runs_on_kernel(x)


def kernels_in_use() -> bool:
    """Whether the kernels are built for this machine and allowed."""
    return _allowed.get() and library() is not None


def kernel_level() -> str | None:
    """The instruction-set level of the kernels, v1 to v4; None without kernels."""
    return level()


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Run the ops of this thread on their PyTorch references, and those of threads that `parallel_map` starts in it."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)
