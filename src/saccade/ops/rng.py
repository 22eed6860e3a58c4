"""Random number generators of ops and layers: PyTorch's default generator, or one per thread.

Parts of a batch that run in parallel threads must not draw from one generator: the order of the threads would change
the numbers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

_thread = threading.local()


@contextlib.contextmanager
def own_generator(seed: int) -> Iterator[None]:
    """Use a generator with this seed for all ops of the current thread; CPU only."""
    before = getattr(_thread, "generator", None)
    _thread.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = before


def generator_of(device: torch.device) -> torch.Generator | None:
    """The generator of the current thread, or None for PyTorch's default generator."""
    return getattr(_thread, "generator", None) if device.type == "cpu" else None


def draw_seed() -> int:
    """Draw a seed for another generator from the current one: `torch.manual_seed` controls all randomness."""
    cpu = torch.device("cpu")
    return int(torch.empty((), dtype=torch.int64, device=cpu).random_(generator=generator_of(cpu)))


def normal_like(x: Tensor) -> Tensor:
    """Standard normal samples with the shape, dtype and device of x."""
    return torch.randn(x.shape, generator=generator_of(x.device), device=x.device, dtype=x.dtype)
