"""A nesting of tensors as a list of named ones, and back: graphs of other runtimes know lists only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.interface import OfMemory, Shared


class Leaf(NamedTuple):
    """One tensor of a nesting; a whole number (the place of a decoder, say) becomes a tensor without dimensions."""

    name: str  # how one gets there: 0.past.keys
    tensor: Tensor
    of_memory: bool  # whether it depends on the memory alone


def leaves(value: Any, name: str = "", of_memory: bool = False) -> Iterator[Leaf]:
    """Every tensor and whole number of a nesting, in order."""
    if isinstance(value, Tensor):
        yield Leaf(name, value, of_memory)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield Leaf(name, torch.tensor(value), of_memory)
    elif isinstance(value, OfMemory):
        yield from leaves(value.value, name, True)
    elif isinstance(value, Shared):
        return  # the same for all inputs: a part of the graph
    else:
        for part, inner in children(value):
            yield from leaves(inner, f"{name}.{part}" if name else part, of_memory)


def children(value: Any) -> list[tuple[str, Any]]:
    """The named parts of a group."""
    if value is None or isinstance(value, str | float | bool):
        return []
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return [(str(place), inner) for place, inner in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    raise TypeError(f"a state holds tensors in tuples, lists, dicts and dataclasses, not {type(value).__name__}")


def with_leaves(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nesting with other tensors in the places of its leaves, in order."""
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
