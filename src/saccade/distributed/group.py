"""The processes that train one model together."""

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
    """This process among all; alone by default."""

    rank: int = 0
    size: int = 1

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes in place, in one message."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        if dist.get_backend() == "nccl":
            values = values.cuda()
        dist.all_reduce(values)
        return [float(value) for value in values]


ALONE = Group()


def local_rank() -> int:
    """The number of this process on its machine, which is also that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join(device: torch.device) -> Group:
    """The group that `torchrun` describes in the environment, or this process alone, computing on this device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return Group(dist.get_rank(), size)
