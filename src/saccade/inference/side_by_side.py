"""Work that falls into independent batches, done side by side: a thread for each core, each computing alone.

Two cores that share every small product wait for each other after each; two that have a batch each do not. Whatever of
a step does not run in parallel, Python above all, then overlaps with the other batch's products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

LEAST = 1024  # tokens of a batch: fewer are not worth a thread of their own


def workers_for(device: torch.device) -> int:
    """How many batches to work on at once."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def batch_share(batch_tokens: int, device: torch.device) -> int:
    """The size of a batch when as many as there are workers are to hold `batch_tokens` together."""
    return min(batch_tokens, max(LEAST, batch_tokens // workers_for(device)))


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """`work(item)` for each, in order; `work` must not depend on what the others do.

    The first fault is raised, and what has not begun by then is left undone.
    """
    threads, workers = torch.get_num_threads(), min(workers_for(device), len(items))
    if workers < 2:
        return [work(item) for item in items]
    each = threads // workers
    torch.set_num_threads(each)  # MKL has one number for the process, OpenMP one for each thread
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(each,))
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)
