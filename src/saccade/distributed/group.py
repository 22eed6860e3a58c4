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

    def total(self, number: float) -> float:
        """The sum of one number over all processes."""
        if self.size == 1:
            return number
        value = torch.tensor([number], dtype=torch.float64)
        if dist.get_backend() == "nccl":
            value = value.cuda()
        dist.all_reduce(value)
        return float(value)


ALONE = Group()


def join() -> Group:
    """The group that `torchrun` describes in the environment, or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return Group(dist.get_rank(), size)
