"""The device of a model, from its name."""

from __future__ import annotations

import torch

from saccade.arguments import check_text
from saccade.errors import SaccadeError, UsageError


def choose_device(name: str, number: int = 0) -> torch.device:
    """Return the device of this name: auto, cpu, cuda, cuda:1 … or mps.

    `auto` is the fastest one available. `number` is the index of the GPU if the name has none.
    """
    check_text(name, "device", hint="name auto, cpu, cuda, cuda:1 … or mps")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, present in available.items() if present)
    kind, _, index = name.partition(":")
    if kind not in available or (index and not index.isdecimal()):
        raise UsageError(f"unknown device '{name}'", hint="name auto, cpu, cuda, cuda:1 … or mps")
    number = int(index) if index else number
    if not available[kind] or (kind == "cuda" and number >= torch.cuda.device_count()):
        raise SaccadeError(f"the device '{name}' is not available on this machine", hint="use auto or cpu")
    return torch.device(kind, number) if kind == "cuda" else torch.device(kind)
