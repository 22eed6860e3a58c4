"""Flattening nested structures of tensors (pytrees) to named leaves and back, for ONNX inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.interface import PerSentence, Shared


class Leaf(NamedTuple):
    """One tensor of a pytree; an integer (such as the decoder's position) becomes a 0-dimensional tensor."""

    name: str  # its path in the pytree: 0.past.keys
    tensor: Tensor
    memory_only: bool  # True = depends on the memory alone, so it is equal in all steps


def leaves(value: Any, name: str = "", memory_only: bool = False) -> Iterator[Leaf]:
    """Yield all tensors and integers of a pytree, in order."""
    if isinstance(value, Tensor):
        yield Leaf(name, value, memory_only)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield Leaf(name, torch.tensor(value), memory_only)
    elif isinstance(value, PerSentence):
        yield from leaves(value.value, name, True)
    elif isinstance(value, Shared):
        return  # equal for all inputs: a constant of the graph
    else:
        for part, inner in children(value):
            yield from leaves(inner, f"{name}.{part}" if name else part, memory_only)


def children(value: Any) -> list[tuple[str, Any]]:
    """Return the named children of a container."""
    if value is None or isinstance(value, str | float | bool):
        return []
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return [(str(index), inner) for index, inner in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    raise TypeError(f"a state holds tensors in tuples, lists, dicts and dataclasses, not {type(value).__name__}")


def with_leaves(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a pytree of the same structure with its leaves replaced by `tensors`, in order."""
    if isinstance(value, Tensor) or (isinstance(value, int) and not isinstance(value, bool)):
        return next(tensors)
    if value is None or isinstance(value, str | float | bool | Shared):
        return value
    inner = [with_leaves(part, tensors) for _, part in children(value)]
    if isinstance(value, dict):
        return dict(zip(value, inner, strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*inner)
    if isinstance(value, tuple | list):
        return type(value)(inner)
    names = [field.name for field in dataclasses.fields(value)]
    return dataclasses.replace(value, **dict(zip(names, inner, strict=True)))
