"""A training checkpoint: weights, optimizer and place in the run; enough to go on as if nothing had happened."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from saccade.checkpoint import WEIGHTS, load_tensors, load_weights, save_tensors, weights_of
from saccade.errors import SaccadeError
from saccade.folder import read_json, verify, whole_folder, write_json
from saccade.training.loop import Progress

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Path:
    """Write `step-N` into the folder of checkpoints."""
    path = folder / f"step-{progress.step}"
    with whole_folder(path) as place:
        save_tensors(place / WEIGHTS, weights_of(model))
        save_tensors(place / OPTIMIZER, optimizer_tensors(model, optimizer))
        write_json(place / STATE, asdict(progress))
    return path


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint's weights and optimizer state in place and return where the run stood."""
    verify(path)
    load_weights(model, path / WEIGHTS)
    restore_optimizer(model, optimizer, load_tensors(path / OPTIMIZER))
    return Progress(**read_json(path / STATE))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `encoder.0.….weight/exp_avg`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        if name not in parameters:
            raise SaccadeError(
                f"the optimizer state speaks of '{name}', which this model lacks", do="resume the same run"
            )
        parameter = parameters[name]
        # The fused kernel keeps its step count on the parameter's device.
        optimizer.state[parameter][key] = value.to(parameter.device)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    numbered = [
        (int(match[1]), path) for path in folder.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))
    ]
    return [path for _, path in sorted(numbered)]


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in checkpoints(folder)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
