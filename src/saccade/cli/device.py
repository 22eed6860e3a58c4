"""Where a model computes."""

from __future__ import annotations

from typing import Annotated

import typer

from saccade.errors import SaccadeError, UsageError

Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 … or mps.")]
"""The `--device` option of every verb that loads a model."""


def find_device(name: str) -> str:
    """The device of this name; `auto` takes the fastest there is."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, present in available.items() if present)
    kind, _, number = name.partition(":")
    if kind not in available or (number and not number.isdecimal()):
        raise UsageError(f"unknown device '{name}'", do="--device takes auto, cpu, cuda, cuda:1 … or mps")
    if not available[kind] or (kind == "cuda" and int(number or 0) >= torch.cuda.device_count()):
        raise SaccadeError(f"there is no device '{name}' here", do="leave --device out, or give --device cpu")
    return name
