"""Run independent batches in parallel threads, each with a share of the CPU cores.

Two cores that split every small matrix product synchronize after each one; two cores with one batch each do not. The
parts of a step that do not run in parallel, above all Python, then overlap with the products of the other batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from threading import RLock
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

MIN_TOKENS = 1024  # per worker: a smaller batch does not gain from its own cores
THREAD_COUNT_LOCK = RLock()  # torch's number of threads is a setting of the whole process


def worker_count(batch_tokens: int, device: torch.device) -> int:
    """Return how many batches to process at once, if they hold at most `batch_tokens` tokens together."""
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):  # autocast is thread-local: workers would not see it
        return 1
    return max(1, min(torch.get_num_threads(), batch_tokens // MIN_TOKENS))


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """Return `work(item)` for each item, in order; `work` must be thread-safe. It sees the caller's `ContextVar`s."""
    results = dict(parallel_map_unordered(work, items, workers))
    return [results[index] for index in range(len(items))]


def parallel_map_unordered(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int, *, stop: Callable[[], None] | None = None
) -> Generator[tuple[int, Result], None, None]:
    """Yield (index, result) as items finish, so that the caller can use one result while others are computed.

    An exception is raised at the caller's next request; items in progress finish first, and no new one starts. The same
    holds for Ctrl-C and for a caller that closes the generator. Callers in several threads take turns: a caller must
    exhaust or close the generator in the thread that started it, before it starts another.

    `stop` is called in these cases: it tells the items in progress to end early. With it, a single worker has a thread
    too, because Python handles Ctrl-C only when the main thread leaves the C code that it runs.
    """
    workers = min(workers, len(items))
    if workers < (2 if stop is None else 1):
        yield from ((index, work(item)) for index, item in enumerate(items))
        return
    with THREAD_COUNT_LOCK:
        threads = torch.get_num_threads()
        threads_per_worker = max(1, threads // workers)
        torch.set_num_threads(threads_per_worker)  # MKL has one number per process, OpenMP one per thread
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads_per_worker,)) as pool:
                indices = {pool.submit(copy_context().run, work, item): index for index, item in enumerate(items)}
                try:
                    for future in as_completed(tuple(indices)):
                        yield indices.pop(future), future.result()
                finally:
                    if stop is not None:
                        stop()
                    pool.shutdown(wait=False, cancel_futures=True)  # the `with` block waits for running items
        finally:
            torch.set_num_threads(threads)
