"""The outline of a model: names and shapes without memory for the weights, to look at before anything is built.

A number in a config may ask for more memory than there is, or for more layers than can be built in a day.
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

MOST_TENSORS = 10_000  # of one model; a stack of 600 Transformer layers has as many

RANDOM = {"normal_", "uniform_"}
FILLING = {"normal_", "uniform_", "fill_", "zero_", "__setitem__"}
ELEMENTWISE = {"mul", "__mul__", "__rmul__", "div", "__truediv__", "exp", "sin", "cos", "float"}


class Shapes(TorchFunctionMode):
    """Computes shapes only, for the functions that constructors call.

    Others go to the library's own meta device. It can do these too, but imports its compiler for that, which takes
    longer than loading a model.
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


class Unfilled(TorchFunctionMode):
    """Leaves parameters as they are when a constructor would fill them with random numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        filled = args[0] if args else (kwargs or {}).get("tensor")
        random = getattr(func, "__module__", None) == nn.init.__name__ or getattr(func, "__name__", None) in RANDOM
        return filled if random and isinstance(filled, nn.Parameter) else func(*args, **(kwargs or {}))


def unfilled() -> TorchFunctionMode:
    """While active, models are built without drawing their first weights: half of the time of loading one."""
    return Unfilled()


def outline(make: Callable[[], nn.Module], most: int = MOST_TENSORS) -> nn.Module:
    """What `make` builds, on no device; a ValueError if that cannot be built, or has more than `most` tensors."""
    try:
        with at_most(most), torch.device("meta"), Shapes():
            return make()
    except (TypeError, OverflowError, RuntimeError):
        raise ValueError("these settings give tensors of an impossible size") from None


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Stop whoever builds a model with more parameters than this, counted once for each name."""
    registered = 0

    def count(*_: object) -> None:
        nonlocal registered
        registered += 1
        if registered > most:
            raise ValueError(f"it would have more than {most:,} tensors")

    counter = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        counter.remove()


def check_memory(model: nn.Module) -> None:
    """Refuse an outline whose weights this machine cannot hold."""
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if needed > memory_size():
        there, asked = memory_size() / 2**30, needed / 2**30
        raise ValueError(f"its weights would take {asked:,.0f} GB, and this machine has {there:,.0f}")


def memory_size() -> float:
    """The bytes of memory of this machine; infinite where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
