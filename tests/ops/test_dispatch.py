from __future__ import annotations

import pytest
import torch

from saccade.ops.dispatch import runs_on_inference_kernel, runs_on_kernel, without_kernels

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


def test_overlapping_blocks_without_kernels():
    """As in two threads: the first to enter is the first to leave."""
    first, second = without_kernels(), without_kernels()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not runs_on_kernel(torch.zeros(1))
    second.__exit__(None, None, None)
    assert runs_on_kernel(torch.zeros(1))


def test_kernels_without_a_backward_pass_are_for_inference(grad_mode):
    assert runs_on_kernel(torch.zeros(1))
    assert runs_on_inference_kernel(torch.zeros(1)) == (not grad_mode)
