"""The outline of a model: its tensors on the meta device (names and shapes), without memory for the weights.

An untrusted config may need more memory than there is, or have more layers than can be built in a day: the outline is
checked before the model is built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

MAX_TENSORS = 10_000  # per model; 600 Transformer layers have about as many

RANDOM = {"normal_", "uniform_"}
FILLING = {"normal_", "uniform_", "fill_", "zero_", "__setitem__"}
ELEMENTWISE = {"mul", "__mul__", "__rmul__", "div", "__truediv__", "exp", "sin", "cos", "float"}


class ShapeOnlyMode(TorchFunctionMode):
    """Computes only shapes for the functions that constructors call.

    All other functions run on PyTorch's meta device. It supports these too, but imports its compiler for them, which
    takes longer than loading a model.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, named = getattr(func, "__name__", None), kwargs or {}
        if name in FILLING:
            return args[0] if args else named["tensor"]
        if name in ELEMENTWISE:
            return torch.empty(np.broadcast_shapes(*(part.shape for part in args if isinstance(part, Tensor))))
        if name == "arange":
            return torch.empty(len(range(*args)))
        return func(*args, **named)


class SkipInit(TorchFunctionMode):
    """Skips the random initialization of parameters in constructors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        filled = args[0] if args else (kwargs or {}).get("tensor")
        random = getattr(func, "__module__", None) == nn.init.__name__ or getattr(func, "__name__", None) in RANDOM
        return filled if random and isinstance(filled, nn.Parameter) else func(*args, **(kwargs or {}))


def skip_init() -> TorchFunctionMode:
    """Skip random initialization while active: it takes half of the time of loading a model."""
    return SkipInit()


def outline(make: Callable[[], nn.Module], most: int = MAX_TENSORS) -> nn.Module:
    """Build the outline of what `make` builds; ValueError if that fails or has more than `most` tensors."""
    try:
        with at_most(most), torch.device("meta"), ShapeOnlyMode():
            return make()
    except (TypeError, OverflowError, RuntimeError):
        raise ValueError("these settings give tensors of an impossible size") from None


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Raise ValueError while a model is built with more than `most` parameters; a shared one counts at each module."""
    registered = 0

    def count(*_: object) -> None:
        nonlocal registered
        registered += 1
        if registered > most:
            raise ValueError(f"the model would have more than {most:,} tensors")

    counter = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        counter.remove()


def check_memory(model: nn.Module) -> None:
    """Raise ValueError if this machine has too little memory for the weights of an outline."""
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if needed > memory_size():
        needed_gb, size_gb = needed / 2**30, memory_size() / 2**30
        raise ValueError(
            f"the weights would take {needed_gb:,.0f} GB, and this machine has {size_gb:,.0f} GB of memory"
        )


def memory_size() -> float:
    """Return the memory of this machine in bytes; infinite if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
