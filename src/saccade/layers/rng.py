"""Random numbers of the layers: torch's own generator, or one of a thread's own.

Parts of a batch that are computed side by side must not take turns at one generator: which of them came first would
change what both draw.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

_own = threading.local()


@contextlib.contextmanager
def own_generator(seed: int) -> Iterator[None]:
    """In this thread the layers draw from a generator of its own; on the CPU only."""
    _own.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _own.generator = None


def generator_of(device: torch.device) -> torch.Generator | None:
    """The thread's own generator; None stands for torch's."""
    return getattr(_own, "generator", None) if device.type == "cpu" else None


def draw_seed() -> int:
    """A seed for a generator of another kind: seeding torch is enough."""
    cpu = torch.device("cpu")
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator_of(cpu)))


def normal_like(x: Tensor) -> Tensor:
    """Draws from the standard normal distribution, in the shape of x."""
    return torch.randn(x.shape, generator=generator_of(x.device), device=x.device, dtype=x.dtype)
