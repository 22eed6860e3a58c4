"""Where and how a process computes: device, precision, threads, allocator and torch.compile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from saccade.allocator import keep_freed_memory
from saccade.inference.device import choose_device
from saccade.training.config import TrainingConfig

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


class ComputeSettings(NamedTuple):
    """Device and precision of a process, with `auto` resolved for this machine."""

    device: torch.device
    precision: Literal["float32", "bf16"]

    @property
    def autocast(self) -> Autocast:
        """Factory of autocast contexts for this precision."""
        bf16 = self.precision == "bf16"
        return partial(torch.autocast, self.device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext


def resolve_compute(config: TrainingConfig, local_rank: int = 0) -> ComputeSettings:
    """Resolve device and precision on this machine; `local_rank` selects the GPU.

    `auto` is bf16 on a GPU with hardware support, else float32: the CPU is faster in float32.
    """
    device = choose_device(config.device, local_rank)
    if config.precision != "auto":
        return ComputeSettings(device, config.precision)
    return ComputeSettings(device, "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32")


def configure_process(config: TrainingConfig) -> None:
    """Set allocator and thread count of this process; results do not depend on the allocator."""
    keep_freed_memory()
    if config.threads:
        torch.set_num_threads(config.threads)


def compile_layers(model: nn.Module, backend: str = "inductor") -> int:
    """Apply torch.compile to each layer of every ModuleList, with dynamic shapes; return the number of layers.

    Equal layers share the compiled code, and the names of the parameters do not change.
    """
    layers = [layer for stack in model.modules() if isinstance(stack, nn.ModuleList) for layer in stack]
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
    return len(layers)
