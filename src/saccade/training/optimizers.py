"""Construction of Adam and Muon, and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from threading import Thread

import torch
from torch import nn

from saccade.training.config import TrainingConfig
from saccade.training.muon import Muon


def preload_optimizer_imports() -> None:
    """Import in the background what torch's first optimizer imports: it takes a second."""
    Thread(target=import_module, args=("torch._dynamo",), daemon=True).start()


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build fused AdamW (plain Adam without weight decay), or Muon."""
    if config.optimizer == "muon":
        return Muon(
            model.named_parameters(),
            momentum=config.momentum,
            betas=config.betas,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
        )
    return torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=config.betas, eps=config.epsilon, weight_decay=config.weight_decay, fused=True
    )


def optimizer_state_keys(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[str, ...]:
    """Return the keys of the optimizer state of one parameter."""
    if isinstance(optimizer, Muon) and parameter in optimizer.parts:
        return ("momentum",)
    return ("step", "exp_avg", "exp_avg_sq")


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
