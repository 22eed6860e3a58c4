"""Saving beside training: a quick copy of the tensors, and a thread that writes it to disk."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from saccade.model_folder import weights_of
from saccade.training.checkpoints.checkpoint import Snapshot, State, optimizer_tensors, prune, write_checkpoint

YIELDING = 10  # nice value of the writing thread: it takes the time that training leaves


class Copies:
    """Room for one copy of some tensors, used again and again: fresh memory would cost more than the copying."""

    def __init__(self) -> None:
        self._room: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of tensors in the memory of the CPU; those of the last time are overwritten."""
        taken: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            room = self._room.get(name)
            if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
                room = torch.empty(tensor.shape, dtype=tensor.dtype)
            taken[name] = room.copy_(tensor.detach())
        self._room = taken
        return taken


class Saver:
    """Writes the checkpoints of a run, one at a time; a fault is raised at the next call."""

    def __init__(self, folder: Path, *, keep: int, every: int, logs: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._keep = keep
        self._every = every
        self._logs = logs
        self._weights = Copies()
        self._optimizer = Copies()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=yield_to_others)
        self._written: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown(wait=True)

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
        """Copy this moment and return; the rest happens while training goes on."""
        self.wait()
        snapshot = Snapshot(
            self._weights.take(weights_of(model)),
            self._optimizer.take(optimizer_tensors(model, optimizer)),
            copy.deepcopy(state),
        )
        self._written = self._writer.submit(self._write, snapshot)

    def check(self) -> None:
        """Raise the fault of the last save, if it has come to one."""
        if self._written is not None and self._written.done():
            self.wait()

    def wait(self) -> None:
        """Until what was to be saved is on disk."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _write(self, snapshot: Snapshot) -> None:
        write_checkpoint(self._folder, snapshot, self._logs)
        prune(self._folder, self._keep, self._every)


def yield_to_others() -> None:
    """Lower the priority of this thread, where the system gives threads one of their own."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id") and os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)
