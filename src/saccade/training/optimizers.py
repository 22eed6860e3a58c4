"""Construction of Adam and Muon, and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from threading import Thread
from typing import Any

import torch
from torch import nn

from saccade.training.config import TrainingConfig
from saccade.training.muon import Muon


def preload_optimizer_imports() -> None:
    """Import in the background what torch's first optimizer imports: it takes a second."""
    Thread(target=import_module, args=("torch._dynamo",), daemon=True).start()


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build fused AdamW (plain Adam without weight decay), or Muon."""
    betas, epsilon, decay = config.betas, config.epsilon, config.weight_decay
    optimizer: torch.optim.Optimizer
    if config.optimizer == "muon":
        optimizer = Muon(
            model.named_parameters(), momentum=config.momentum, betas=betas, epsilon=epsilon, weight_decay=decay
        )
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=0.0, betas=betas, eps=epsilon, weight_decay=decay, fused=True
        )
    optimizer.register_step_post_hook(increment_versions)
    return optimizer


def increment_versions(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Count the update in the versions of all parameters: PyTorch's fused Adam changes weights without it.

    Inference plans compare versions to find out whether they are current.
    """
    torch.autograd.graph.increment_version([p for group in optimizer.param_groups for p in group["params"]])


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
