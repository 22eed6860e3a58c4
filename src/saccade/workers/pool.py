"""A pool of workers with the same handler: requests are distributed, results are returned in order.

One thread per worker exchanges messages; only a few requests are in flight at a time.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from saccade.workers.messages import Message
from saccade.workers.process import Worker, running_worker

Item = TypeVar("Item")

QUEUED = 2  # maximum number of requests that wait for a free worker


def request_in_order(
    items: Iterable[Item],
    to_request: Callable[[Item], Message],
    module: str,
    setup: Message,
    *,
    workers: int,
    environment: Mapping[str, str] | None = None,
) -> Generator[tuple[Item, Message]]:
    """Yield every item with the result of its request, in order; close the generator to end the workers early.

    Each worker runs `make_handler(setup)` of the module. A result must depend on its request alone.
    """
    with contextlib.ExitStack() as stack:
        idle: SimpleQueue[Worker] = SimpleQueue()
        pool = ThreadPoolExecutor(workers)
        # At the end, in this order: no new request starts, the workers end, and then the threads that wait for them.
        stack.callback(pool.shutdown)
        for _ in range(workers):
            idle.put(stack.enter_context(running_worker(module, setup, environment=environment)))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)

        def request(item: Item) -> Message:
            worker = idle.get()
            try:
                return worker.request(to_request(item))
            finally:
                idle.put(worker)

        in_flight: deque[tuple[Item, Future[Message]]] = deque()
        for item in items:
            in_flight.append((item, pool.submit(request, item)))
            if len(in_flight) >= workers + QUEUED:
                oldest, future = in_flight.popleft()
                yield oldest, future.result()
        for oldest, future in in_flight:
            yield oldest, future.result()
