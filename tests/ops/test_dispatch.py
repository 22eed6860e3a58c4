from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from saccade.ops.dispatch import runs_on_inference_kernel, runs_on_kernel, without_kernels
from saccade.parallel_map import parallel_map

pytestmark = pytest.mark.usefixtures("kernel_level")


def test_kernels_are_for_float32_on_the_cpu():
    assert runs_on_kernel(torch.zeros(1))
    assert not runs_on_kernel(torch.zeros(1, dtype=torch.float64))
    assert not runs_on_kernel(torch.zeros(1, device="meta"))
    with without_kernels():
        assert not runs_on_kernel(torch.zeros(1))
    with torch.autocast("cpu"):
        assert not runs_on_kernel(torch.zeros(1))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_no_kernel_runs_while_a_graph_is_traced():
    seen = []

    def traced(x):
        seen.append(runs_on_kernel(x))
        return x + 1

    torch.jit.trace(traced, torch.zeros(1), check_trace=False)
    assert seen == [False]


def test_other_threads_keep_their_kernels():
    """Two threads of which the first to enter `without_kernels` is the first to leave."""
    x, entered, left = torch.zeros(1), threading.Barrier(2), threading.Barrier(2)

    def first():
        with without_kernels():
            entered.wait(10)
            inside = runs_on_kernel(x)
        left.wait(10)
        return inside, runs_on_kernel(x)

    def second():
        with without_kernels():
            entered.wait(10)
            left.wait(10)
            inside = runs_on_kernel(x)
        return inside, runs_on_kernel(x)

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(function) for function in (first, second)]
        assert [future.result() for future in found] == [(False, True)] * 2
    with without_kernels(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(runs_on_kernel, x).result()


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_of_a_parallel_map_run_without_kernels_too(workers):
    items = [torch.zeros(1)] * 4
    with without_kernels():
        assert not any(parallel_map(runs_on_kernel, items, workers))
    assert all(parallel_map(runs_on_kernel, items, workers))


def test_blocks_within_blocks():
    with without_kernels():
        with without_kernels():
            assert not runs_on_kernel(torch.zeros(1))
        assert not runs_on_kernel(torch.zeros(1))
    assert runs_on_kernel(torch.zeros(1))


def test_kernels_without_a_backward_pass_are_for_inference(grad_mode):
    assert runs_on_kernel(torch.zeros(1))
    assert runs_on_inference_kernel(torch.zeros(1)) == (not grad_mode)
