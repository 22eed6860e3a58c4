"""Background saving: copy the tensors, then write them to disk in a thread while training continues."""

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
from saccade.training.checkpoints.checkpoint import Snapshot, TrainingState, optimizer_tensors, prune, write_checkpoint

WRITER_NICE = 10  # nice value of the writing thread: training has priority


class CpuBuffers:
    """Reusable CPU buffers for copies of tensors: allocating new memory would take longer than copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to the CPU; overwrites the previous copies."""
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            copies[name] = buffer.copy_(tensor.detach())
        self._buffers = copies
        return copies


class CheckpointSaver:
    """Writes checkpoints in a background thread, one at a time; an error is raised at the next call."""

    def __init__(self, folder: Path, *, keep: int, every: int, logs: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._keep = keep
        self._every = every
        self._logs = logs
        self._weights = CpuBuffers()
        self._optimizer = CpuBuffers()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=lower_thread_priority)
        self._written: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown(wait=True)

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState) -> None:
        """Copy weights, optimizer and state, and return; the copy is written while training continues."""
        self.wait()
        snapshot = Snapshot(
            self._weights.copy(weights_of(model)),
            self._optimizer.copy(optimizer_tensors(model, optimizer)),
            copy.deepcopy(state),
        )
        self._written = self._writer.submit(self._write, snapshot)

    def check(self) -> None:
        """Raise the error of the last save, if it has failed by now."""
        if self._written is not None and self._written.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _write(self, snapshot: Snapshot) -> None:
        write_checkpoint(self._folder, snapshot, self._logs)
        prune(self._folder, self._keep, self._every)


def lower_thread_priority() -> None:
    """Lower the priority of this thread; only Linux has a priority per thread."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id") and os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICE)
