"""The machine that a run computes on: its memory, its threads, its precision, its disk."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saccade.allocator import keep_memory
from saccade.errors import SaccadeError
from saccade.training.config import TrainingConfig

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


def prepare_machine(config: TrainingConfig) -> None:
    """Settings of the process that make training faster and change no result."""
    keep_memory()
    if config.threads:
        torch.set_num_threads(config.threads)


def choose_precision(device: torch.device, precision: str) -> str:
    """bf16 where the device has hardware for it; the CPU is faster in float32."""
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


def autocast_for(device: torch.device, precision: str) -> Autocast:
    """What makes a forward pass run in this precision."""
    bf16 = precision == "bf16"
    return partial(torch.autocast, device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext


def compile_layers(model: nn.Module, backend: str = "inductor") -> int:
    """Compile each layer of every stack, for batches of any shape; how many there are.

    Layers of a stack are alike, so that what is compiled for one serves all, and a model keeps its names and weights.
    """
    layers = [layer for stack in model.modules() if isinstance(stack, nn.ModuleList) for layer in stack]
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
    return len(layers)


def disk_needed(model: nn.Module, training: TrainingConfig) -> int:
    """The bytes that a run will keep: a checkpoint is the weights and two moments of each, a model the weights."""
    weights = sum(int(weight.nbytes) for weight in model.state_dict().values())
    return weights * (3 * (training.keep_checkpoints + 1) + 2 + (training.average_last > 1))


def check_disk(place: Path, needed: int) -> None:
    """Refuse a disk that has no room for what a run will keep."""
    free = shutil.disk_usage(existing_parent(place)).free
    if needed > free:
        raise SaccadeError(
            f"checkpoints and models will need {byte_size(needed)}, and {byte_size(free)} are free",
            where=str(place),
            do="free some space, lower --training.keep-checkpoints, or choose another --output",
        )


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def byte_size(count: int) -> str:
    """Bytes as 250 MB or 1.25 GB."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
