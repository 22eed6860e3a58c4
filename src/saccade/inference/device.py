"""Where a model computes."""

from __future__ import annotations

import torch

from saccade.errors import SaccadeError, UsageError


def choose_device(name: str, number: int = 0) -> torch.device:
    """The device of this name, `cuda:1` included; `auto` takes the fastest there is, `number` says which GPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, present in available.items() if present)
    kind, _, index = name.partition(":")
    if kind not in available or (index and not index.isdecimal()):
        raise UsageError(f"unknown device '{name}'", do="a device is auto, cpu, cuda, cuda:1 … or mps")
    number = int(index) if index else number
    if not available[kind] or (kind == "cuda" and number >= torch.cuda.device_count()):
        raise SaccadeError(f"there is no device '{name}' here", do="leave the device out, or choose cpu")
    return torch.device(kind, number) if kind == "cuda" else torch.device(kind)
