"""Work that falls into independent batches, done side by side: a few cores for each, instead of all of them for one.

Two cores that share every small product wait for each other after each; two that have a batch each do not. Whatever of
a step does not run in parallel, Python above all, then overlaps with the other batch's products.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    """`work(item)` for each, in order; `work` must not depend on what the others do, nor write to anything shared."""
    found = dict(as_they_end(work, items, workers))
    return [found[place] for place in range(len(items))]


def as_they_end(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Generator[tuple[int, Result], None, None]:
    """The same as the items end, each with its place: the caller can go on with one while others are worked on.

    A fault is raised when the caller asks for the next one; those that have begun are finished first, and no other is
    begun then. So it is with Ctrl-C, and if the caller wants no more. Callers in several threads take turns: whoever
    begins must go on to the end, or close it, in the same thread and before it begins another.
    """
    workers = min(workers, len(items))
    if workers < 2:
        yield from ((place, work(item)) for place, item in enumerate(items))
        return
    with ONE_AT_A_TIME:
        threads = torch.get_num_threads()
        each = max(1, threads // workers)
        torch.set_num_threads(each)  # MKL has one number for the process, OpenMP one for each thread
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(each,)) as pool:
                places = {pool.submit(work, item): place for place, item in enumerate(items)}
                try:
                    for future in as_completed(tuple(places)):
                        yield places.pop(future), future.result()
                finally:
                    pool.shutdown(wait=False, cancel_futures=True)  # leaving the block waits for those that run
        finally:
            torch.set_num_threads(threads)
