"""The process group that trains one model (data parallel)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Rank of this process and size of its group; a single process by default."""

    rank: int = 0
    size: int = 1

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes in place, in one message."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def all_reduce_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        if dist.get_backend() == "nccl":
            values = values.cuda()
        dist.all_reduce(values)
        return [float(value) for value in values]

    def barrier(self) -> None:
        """Wait until all processes have reached this point."""
        self.all_reduce_numbers([0.0])


SINGLE_PROCESS = Group()


def local_rank() -> int:
    """Return the rank of this process on its machine, which is also the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join_process_group(device: torch.device) -> Group:
    """Join the group that `torchrun` describes in the environment; without it, return a single process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return SINGLE_PROCESS
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return Group(dist.get_rank(), size)
