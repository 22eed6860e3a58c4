from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from saccade.parallel_map import MIN_TOKENS, parallel_map, parallel_map_unordered, worker_count

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("workers", "threads"), [(4, 1), (3, 1), (2, 2)])
def test_workers_run_in_parallel_and_share_the_cores(workers, threads):
    all_workers = threading.Barrier(workers, timeout=60)  # passed only by all workers at once

    def work(item: int) -> tuple[int, int]:
        all_workers.wait()
        return 10 * item, torch.get_num_threads()

    items = range(2 * workers)
    assert parallel_map(work, items, workers) == [(10 * item, threads) for item in items]
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("items", "workers"), [([], 4), ([1], 4), ([1, 2, 3], 1)])
def test_one_batch_or_one_worker_has_all_cores(items, workers):
    def work(item: int) -> tuple[int, int, str]:
        return item, torch.get_num_threads(), threading.current_thread().name

    here = threading.current_thread().name
    assert parallel_map(work, items, workers) == [(item, 4, here) for item in items]


def test_an_error_stops_the_map_and_restores_the_number_of_threads():
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        if item == 3:
            raise ValueError("the fourth")
        time.sleep(0.01)
        return item

    with pytest.raises(ValueError, match="the fourth"):
        parallel_map(work, range(1000), 4)
    assert len(started) < 500  # they would take 2.5 seconds
    assert torch.get_num_threads() == 4


def test_results_are_yielded_while_others_are_computed():
    may_end = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert may_end.wait(60)
        return 10 * item

    ended = parallel_map_unordered(work, range(4), 2)
    assert {next(ended) for _ in range(3)} == {(1, 10), (2, 20), (3, 30)}
    may_end.set()
    assert list(ended) == [(0, 0)]


def test_closing_the_generator_restores_the_number_of_threads():
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        time.sleep(0.01)
        return item

    ended = parallel_map_unordered(work, range(1000), 4)
    next(ended)
    assert torch.get_num_threads() == 1
    ended.close()
    assert torch.get_num_threads() == 4
    count = len(started)
    time.sleep(0.05)
    assert len(started) == count < 500


def test_concurrent_callers_take_turns_and_restore_the_number_of_threads():
    seen: list[int] = []
    results: dict[int, list[int]] = {}

    def work(item: int) -> int:
        seen.append(torch.get_num_threads())
        time.sleep(0.01)
        return item

    def call(caller: int) -> None:
        torch.set_num_threads(4)
        results[caller] = parallel_map(work, [caller, caller + 1, caller + 2], 2)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == {number: [number, number + 1, number + 2] for number in range(3)}
    assert set(seen) == {2}
    assert torch.get_num_threads() == 4


def test_the_number_of_workers_depends_on_the_tokens_in_memory():
    assert worker_count(100 * MIN_TOKENS, CPU) == 4
    assert worker_count(3 * MIN_TOKENS - 1, CPU) == 2
    assert worker_count(7, CPU) == 1
    assert worker_count(100 * MIN_TOKENS, GPU) == 1
    with torch.autocast("cpu", torch.bfloat16):  # autocast is thread-local
        assert worker_count(100 * MIN_TOKENS, CPU) == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stop_function_ends_the_items_in_progress(workers: int) -> None:
    stopped = threading.Event()

    def work(item: int) -> str:
        if item == 0:
            return threading.current_thread().name
        assert stopped.wait(timeout=60)
        return "stopped"

    results = parallel_map_unordered(work, range(10), workers, stop=stopped.set)
    assert next(results)[1] != threading.current_thread().name  # the main thread remains free for Ctrl-C
    assert not stopped.is_set()
    results.close()  # would wait for the items in progress
    assert stopped.is_set()
    assert torch.get_num_threads() == 4
