"""Adam, and the step it takes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from threading import Thread

import torch
from torch import nn

from saccade.training.config import TrainingConfig


def expect_optimizer() -> None:
    """Begin to import what torch imports with its first optimizer: a second that passes while the data is opened."""
    Thread(target=import_module, args=("torch._dynamo",), daemon=True).start()


def make_optimizer(parameters: Iterable[nn.Parameter], config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW on the fused kernel; without weight decay it is Adam."""
    return torch.optim.AdamW(
        list(parameters), lr=0.0, betas=config.betas, eps=config.epsilon, weight_decay=config.weight_decay, fused=True
    )


def scale_and_clip(parameters: Iterable[nn.Parameter], count: float, clip_norm: float) -> float:
    """Divide summed gradients by the global count, clip their norm, and return the norm before clipping."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch._foreach_norm(gradients)
    norm = float(torch.linalg.vector_norm(torch.stack(norms))) / count
    scale = 1.0 / count
    if clip_norm and norm > clip_norm:
        scale *= clip_norm / norm
    torch._foreach_mul_(gradients, scale)
    return norm
