"""Threads, memory allocator, precision, compilation and disk space of a run."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saccade.allocator import keep_freed_memory
from saccade.errors import SaccadeError
from saccade.training.config import TrainingConfig

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


def configure_process(config: TrainingConfig) -> None:
    """Set allocator and thread count of this process; results do not depend on the allocator."""
    keep_freed_memory()
    if config.threads:
        torch.set_num_threads(config.threads)


def choose_precision(device: torch.device, precision: str) -> str:
    """Resolve "auto": bf16 on a GPU with hardware support, else float32 (the CPU is faster in float32)."""
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


def make_autocast(device: torch.device, precision: str) -> Autocast:
    """Return a factory of autocast contexts for this precision."""
    bf16 = precision == "bf16"
    return partial(torch.autocast, device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext


def compile_layers(model: nn.Module, backend: str = "inductor") -> int:
    """Apply torch.compile to each layer of every ModuleList, with dynamic shapes; return the number of layers.

    Equal layers share the compiled code, and the names of the parameters do not change.
    """
    layers = [layer for stack in model.modules() if isinstance(stack, nn.ModuleList) for layer in stack]
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
    return len(layers)


def estimate_disk_bytes(model: nn.Module, training: TrainingConfig) -> int:
    """Estimate the disk space of a run: a checkpoint holds weights and two Adam moments, a model folder the weights."""
    weights = sum(int(weight.nbytes) for weight in model.state_dict().values())
    return weights * (3 * (training.keep_checkpoints + 1) + 2 + (training.average_last > 1))


def check_disk(path: Path, needed: int) -> None:
    """Raise an error if the disk has less free space than a run needs."""
    free = shutil.disk_usage(existing_parent(path)).free
    if needed > free:
        raise SaccadeError(
            f"checkpoints and models need {format_bytes(needed)} of disk space, only {format_bytes(free)} are free",
            where=str(path),
            do="free some space, lower --training.keep-checkpoints, or choose another --output",
        )


def existing_parent(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def format_bytes(count: int) -> str:
    """Format a number of bytes as 250 MB or 1.25 GB."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
