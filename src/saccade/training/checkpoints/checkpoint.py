"""A training checkpoint: weights, optimizer state and progress; a resumed run equals an uninterrupted one."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.folder import atomic_folder, damaged, fsync, partial_path, read_json, recover, verify, write_json
from saccade.model_folder import WEIGHTS, load_tensors, load_weights, save_tensors
from saccade.training.loop import Progress
from saccade.training.optimizers import optimizer_state_keys
from saccade.untrusted_files import shown

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
DAMAGED_PREFIX = "damaged-"


@dataclass(frozen=True)
class TrainingState:
    """The contents of a checkpoint except tensors; plain data (state.json)."""

    progress: Progress
    logged: dict[str, int] = field(default_factory=dict)  # size of each CSV file at this step, in bytes
    environment: dict[str, str] = field(default_factory=dict)  # versions and hardware that bitwise equality depends on


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state of a run, which can be written while training continues."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: TrainingState


def write_checkpoint(folder: Path, snapshot: Snapshot, logs: Sequence[Path] = ()) -> Path:
    """Write `step-N` into the checkpoint folder; the log files are flushed to disk before it becomes visible."""
    path = folder / f"step-{snapshot.state.progress.step}"
    with atomic_folder(path) as staging:
        save_tensors(staging / WEIGHTS, snapshot.weights)
        save_tensors(staging / OPTIMIZER, snapshot.optimizer)
        write_json(staging / STATE, asdict(snapshot.state))
        for log in logs:
            if log.is_file():
                with contextlib.suppress(OSError):  # a log never costs a checkpoint
                    fsync(log)
    return path


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Load weights and optimizer state and return the training state; `path` must have been verified."""
    state = load_state(path)
    load_weights(model, path / WEIGHTS)
    restore_optimizer(model, optimizer, path / OPTIMIZER)
    return state


def load_state(path: Path) -> TrainingState:
    """Read the training state of a checkpoint; any deviation from the written format is an error."""
    values = read_json(path / STATE)
    try:
        state = TypeAdapter(TrainingState).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise damaged(path / STATE, f"{key} cannot be {shown(first['input'])}: {first['msg']}") from None
    if asdict(state) != values:
        raise damaged(path / STATE, "unknown checkpoint format")
    if state.progress.step != step_of(path):
        raise damaged(path / STATE, f"step {shown(state.progress.step)} does not match the folder {path.name}")
    if any(count < 0 for count in nonnegative_counts(state)):
        raise damaged(path / STATE, "contains a negative count")
    return state


def nonnegative_counts(state: TrainingState) -> list[float]:
    """Return all numbers of a training state that cannot be negative."""
    progress = state.progress
    counts = [progress.seconds, progress.source_tokens, progress.target_tokens, progress.flops, progress.best_step]
    return [progress.step, progress.stale, *asdict(progress.position).values(), *counts, *state.logged.values()]


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state by parameter name: `encoder.0.….weight/exp_avg`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = torch.as_tensor(value).detach()
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Load the tensors that `optimizer_tensors` returned from a file into the optimizer."""
    parameters = dict(model.named_parameters())
    tensors = load_tensors(path)
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        keys = optimizer_state_keys(optimizer, parameters[name]) if name in parameters else ()
        if key not in keys:
            raise damaged(path, f"unexpected optimizer state {shown(full)} for this model and optimizer")
        parameter = parameters[name]
        expected = torch.Size() if key == "step" else parameter.shape
        if value.shape != expected or value.dtype != torch.float32:
            raise damaged(path, f"tensor '{full}' has shape {tuple(value.shape)}, not {tuple(expected)} float32")
        if not value.isfinite().all():
            raise damaged(path, f"tensor '{full}' contains infinite or NaN values")
        if any(f"{name}/{other}" not in tensors for other in keys):
            raise damaged(path, f"incomplete optimizer state of '{name}'")
        # The fused kernel keeps its step count on the parameter's device.
        optimizer.state[parameter][key] = value.to(parameter.device)


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    numbered = [
        (int(match[1]), path) for path in folder.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))
    ]
    return [path for _, path in sorted(numbered)]


def step_of(path: Path) -> int:
    """Return the step of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def scheduled_checkpoints(paths: Sequence[Path], every: int) -> list[Path]:
    """Return the checkpoints that an uninterrupted run would have: every `every` steps, and the newest."""
    return [path for path in paths if step_of(path) % every == 0 or path == paths[-1]]


def prune(folder: Path, keep: int, every: int) -> None:
    """Remove all but the newest `keep` scheduled checkpoints, and those of interruptions that have a newer one."""
    paths = list_checkpoints(folder)
    for path in set(paths) - set(scheduled_checkpoints(paths, every)[-keep:]):
        shutil.rmtree(path.rename(partial_path(path)), ignore_errors=True)  # rename: a partial removal is no checkpoint


class IntactCheckpoint(NamedTuple):
    """The newest intact checkpoint, and the newer damaged ones with their errors."""

    path: Path | None
    damaged: list[tuple[Path, SaccadeError]]


def find_newest_intact(folder: Path) -> IntactCheckpoint:
    """Find the checkpoint to resume from, after cleaning up what a killed writer left."""
    for leftover in folder.glob(".step-*"):
        recover(leftover.with_name(leftover.name.split(".")[1]))
    errors: list[tuple[Path, SaccadeError]] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path, WEIGHTS, OPTIMIZER, STATE)
            load_state(path)
        except SaccadeError as error:
            errors.append((path, error))
        else:
            return IntactCheckpoint(path, errors)
    return IntactCheckpoint(None, errors)


def mark_damaged(path: Path) -> Path:
    """Rename a damaged checkpoint: it is kept, but not used to resume."""
    target = path.with_name(f"{DAMAGED_PREFIX}{path.name}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{DAMAGED_PREFIX}{path.name}-{number}")
    return path.rename(target)
