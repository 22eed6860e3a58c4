"""Work that falls into independent batches, done side by side: a few cores for each, instead of all of them for one.

Two cores that share every small product wait for each other after each; two that have a batch each do not. Whatever of
a step does not run in parallel, Python above all, then overlaps with the other batch's products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import RLock
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

LEAST = 1024  # tokens of a batch: fewer are not worth cores of their own
ONE_AT_A_TIME = RLock()  # the number of threads that torch computes with belongs to the whole process


def workers_for(batch_tokens: int, device: torch.device) -> int:
    """How many batches to work on at once, if together they may hold so many tokens."""
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):  # other threads would not know of it
        return 1
    return max(1, min(torch.get_num_threads(), batch_tokens // LEAST))


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """`work(item)` for each, in order; `work` must not depend on what the others do, nor write to anything shared.

    A fault is raised as soon as it happens, but for the items that have begun: those are finished first, and no other
    is begun. So it is with Ctrl-C. Callers in several threads take turns.
    """
    workers = min(workers, len(items))
    if workers < 2:
        return [work(item) for item in items]
    with ONE_AT_A_TIME:
        threads = torch.get_num_threads()
        each = max(1, threads // workers)
        torch.set_num_threads(each)  # MKL has one number for the process, OpenMP one for each thread
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(each,)) as pool:
                futures = [pool.submit(work, item) for item in items]
                try:
                    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                        future.result()
                finally:
                    pool.shutdown(wait=False, cancel_futures=True)  # leaving the block waits for those that run
                return [future.result() for future in futures]
        finally:
            torch.set_num_threads(threads)
