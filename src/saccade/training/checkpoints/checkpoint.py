"""A training checkpoint: weights, optimizer and place in the run; enough to go on as if nothing had happened."""

from __future__ import annotations

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
from saccade.folder import damaged, flush, partial, read_json, recover, verify, whole_folder, write_json
from saccade.model_folder import WEIGHTS, load_tensors, load_weights, save_tensors
from saccade.training.loop import Progress
from saccade.training.optimizers import kept_of
from saccade.untrusted_files import shown

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
DAMAGED = "damaged-"


@dataclass(frozen=True)
class State:
    """All of a checkpoint but the tensors; plain data."""

    progress: Progress
    logged: dict[str, int] = field(default_factory=dict)  # bytes of each log that belong to this step
    environment: dict[str, str] = field(default_factory=dict)  # what bitwise equal arithmetic needs to be the same


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run, apart from what goes on changing: it can be written while training goes on."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: State


def write_checkpoint(folder: Path, snapshot: Snapshot, logs: Sequence[Path] = ()) -> Path:
    """Write `step-N` into the folder of checkpoints; what the logs say of it is on disk before it counts."""
    path = folder / f"step-{snapshot.state.progress.step}"
    with whole_folder(path) as place:
        save_tensors(place / WEIGHTS, snapshot.weights)
        save_tensors(place / OPTIMIZER, snapshot.optimizer)
        write_json(place / STATE, asdict(snapshot.state))
        for log in logs:
            if log.exists():
                flush(log)
    return path


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Put a checkpoint's weights and optimizer state in place and return where the run stood; `path` is verified."""
    state = load_state(path)
    load_weights(model, path / WEIGHTS)
    restore_optimizer(model, optimizer, path / OPTIMIZER)
    return state


def load_state(path: Path) -> State:
    """The plain data of a checkpoint, refused unless it has exactly the form that was written."""
    values = read_json(path / STATE)
    try:
        state = TypeAdapter(State).validate_python(values)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise damaged(path / STATE, f"{place} cannot be {shown(fault['input'])}: {fault['msg']}") from None
    if asdict(state) != values:
        raise damaged(path / STATE, "does not say where a run stands in the words of this Saccade")
    if state.progress.step != step_of(path):
        raise damaged(path / STATE, f"is of step {shown(state.progress.step)}, and its folder of step {step_of(path)}")
    if any(count < 0 for count in counts_of(state)):
        raise damaged(path / STATE, "has a count below 0")
    return state


def counts_of(state: State) -> list[float]:
    """All that can only grow from 0."""
    progress = state.progress
    counts = [progress.seconds, progress.source_tokens, progress.target_tokens, progress.flops, progress.best_step]
    return [progress.step, progress.stale, *asdict(progress.place).values(), *counts, *state.logged.values()]


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `encoder.0.….weight/exp_avg`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = torch.as_tensor(value).detach()
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """The inverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    tensors = load_tensors(path)
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        kept = kept_of(optimizer, parameters[name]) if name in parameters else ()
        if key not in kept:
            raise damaged(path, f"the optimizer state speaks of {shown(full)}, which this model or optimizer lacks")
        parameter = parameters[name]
        expected = torch.Size() if key == "step" else parameter.shape
        if value.shape != expected or value.dtype != torch.float32:
            raise damaged(path, f"the tensor '{full}' is {tuple(value.shape)}, not {tuple(expected)} of float32")
        if not value.isfinite().all():
            raise damaged(path, f"the tensor '{full}' holds values that are infinite or no numbers")
        if any(f"{name}/{other}" not in tensors for other in kept):
            raise damaged(path, f"lacks a part of the optimizer state of '{name}'")
        # The fused kernel keeps its step count on the parameter's device.
        optimizer.state[parameter][key] = value.to(parameter.device)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    numbered = [
        (int(match[1]), path) for path in folder.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))
    ]
    return [path for _, path in sorted(numbered)]


def step_of(path: Path) -> int:
    """The update after which a checkpoint was taken."""
    return int(path.name.removeprefix("step-"))


def regular(paths: Sequence[Path], every: int) -> list[Path]:
    """The checkpoints that the run would have without any interruption: every so many steps, and the newest."""
    return [path for path in paths if step_of(path) % every == 0 or path == paths[-1]]


def prune(folder: Path, keep: int, every: int) -> None:
    """Remove all but the newest regular checkpoints; those of an interruption go as soon as there is a newer one."""
    paths = checkpoints(folder)
    for path in set(paths) - set(regular(paths, every)[-keep:]):
        shutil.rmtree(path.rename(partial(path)), ignore_errors=True)  # half removed it must not look like one


class Whole(NamedTuple):
    """The newest checkpoint that is whole, and those newer ones that are not, with the reason."""

    path: Path | None
    damaged: list[tuple[Path, SaccadeError]]


def newest_whole(folder: Path) -> Whole:
    """Look for the checkpoint to go on from; leftovers of a killed writer are put right first."""
    for leftover in folder.glob(".step-*"):
        recover(leftover.with_name(leftover.name.split(".")[1]))
    faults: list[tuple[Path, SaccadeError]] = []
    for path in reversed(checkpoints(folder)):
        try:
            verify(path, WEIGHTS, OPTIMIZER, STATE)
            load_state(path)
        except SaccadeError as error:
            faults.append((path, error))
        else:
            return Whole(path, faults)
    return Whole(None, faults)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it neither counts as one nor is lost."""
    place = path.with_name(f"{DAMAGED}{path.name}")
    number = 1
    while place.exists():
        number += 1
        place = path.with_name(f"{DAMAGED}{path.name}-{number}")
    return path.rename(place)
