"""Disk space that a run needs for its checkpoints and models."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from saccade.errors import SaccadeError
from saccade.training.config import TrainingConfig
from saccade.training.units import format_bytes


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
            hint="free some space, lower --training.keep-checkpoints, or choose another --output",
        )


def existing_parent(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
