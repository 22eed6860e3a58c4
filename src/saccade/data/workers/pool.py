"""Chunks of pairs, worked on by several processes, answered in order.

The processes are started anew, not forked, and not by `multiprocessing`: that would import the user's main module again
and pickle what it sends. A thread a process does the talking; only a few chunks are under way at a time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from saccade.data.reading.pair_stream import Chunk
from saccade.data.workers.jobs import Job
from saccade.data.workers.messages import Frame, chunk_frame, read_frame, write_frame
from saccade.errors import SaccadeError

ALONE_UP_TO = 2  # chunks that are done before other processes would have started
WAITING = 2  # chunks that wait for a free process
MOST_WORKERS = 16  # by default: beyond that, one process cannot read files fast enough for the others
PATIENCE = 5.0  # seconds that a process may take to end when it has nothing more to do


class Answered(NamedTuple):
    """A chunk and the answer to it."""

    chunk: Chunk
    answer: Frame


def default_workers() -> int:
    """One process for each core that this one may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


def map_chunks(chunks: Iterable[Chunk], job: Job, workers: int | None = None) -> Generator[Answered]:
    """Every chunk with its answer, in order; close the generator to stop early.

    Few chunks, or one worker, are worked on in this process. The answers are the same for any number of workers.
    """
    workers = workers or default_workers()
    remaining = iter(chunks)
    first = list(islice(remaining, ALONE_UP_TO + 1))
    everything = chain(first, remaining)
    if workers == 1 or len(first) <= ALONE_UP_TO or not sys.executable:
        for chunk in everything:
            yield Answered(chunk, job.do(chunk))
        return
    with contextlib.ExitStack() as stack:
        idle: SimpleQueue[Worker] = SimpleQueue()
        pool = ThreadPoolExecutor(workers)
        # At the end, in this order: no new chunk is begun, the processes end, and with them what the threads wait for.
        stack.callback(pool.shutdown)
        for _ in range(workers):
            idle.put(stack.enter_context(running_worker(job)))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield from in_order(everything, pool, idle, under_way=workers + WAITING)


def in_order(
    chunks: Iterator[Chunk], pool: ThreadPoolExecutor, idle: SimpleQueue[Worker], under_way: int
) -> Iterator[Answered]:
    """Hand out chunks as workers become free, and return the answers as the chunks came."""

    def ask(chunk: Chunk) -> Frame:
        worker = idle.get()
        try:
            return worker.ask(chunk)
        finally:
            idle.put(worker)

    waiting: deque[tuple[Chunk, Future[Frame]]] = deque()
    for chunk in chunks:
        waiting.append((chunk, pool.submit(ask, chunk)))
        if len(waiting) >= under_way:
            yield answered(*waiting.popleft())
    while waiting:
        yield answered(*waiting.popleft())


def answered(chunk: Chunk, future: Future[Frame]) -> Answered:
    """The answer when it is there."""
    answer = future.result()
    if "error" in answer.values:
        what, where, do = answer.values["error"]
        raise SaccadeError(what, where=where, do=do)
    return Answered(chunk, answer)


class Worker:
    """Another process that does one job."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def tell(self, frame: Frame) -> None:
        """Send a message."""
        assert self.process.stdin is not None
        try:
            write_frame(self.process.stdin, frame)
        except (OSError, ValueError):  # the pipe is broken, or closed by us
            raise self._ended() from None

    def ask(self, chunk: Chunk) -> Frame:
        """Send a chunk and wait for the answer."""
        self.tell(chunk_frame(chunk))
        assert self.process.stdout is not None
        try:
            answer = read_frame(self.process.stdout)
        except (OSError, EOFError, ValueError):
            raise self._ended() from None
        if answer is None:
            raise self._ended()
        return answer

    def _ended(self) -> SaccadeError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        return SaccadeError(
            f"a process that tokenises ended unexpectedly (status {self.process.returncode})",
            do="if memory ran out, use fewer processes: --data.workers 1",
        )


@contextlib.contextmanager
def running_worker(job: Job) -> Iterator[Worker]:
    """A process that knows its job; at the end it ends, if need be by force."""
    # The worker must import this very package, wherever it lies; Ctrl-C is for us alone, who then end the worker.
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "saccade.data.workers.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TOKENIZERS_PARALLELISM": "false"},
        start_new_session=True,
    )
    try:
        worker = Worker(process)
        worker.tell(job.describe())
        yield worker
        assert process.stdin is not None
        process.stdin.close()  # no more chunks
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not yet sent is of no use
                    stream.close()
