from __future__ import annotations

from collections.abc import Iterator

import pytest

from saccade.complexity import resident
from saccade.complexity.measurement import Task, timing
from saccade.complexity.series import Plan, Worker, measurements, worker
from saccade.complexity.subjects import SUBJECTS, Sizes
from saccade.errors import SaccadeError

SIZES = Sizes(radius=8)


@pytest.fixture(scope="module")
def measuring() -> Iterator[Worker]:
    with worker() as process:
        yield process


@pytest.mark.parametrize("name", list(SUBJECTS))
def test_every_layer_can_be_measured(name: str, measuring: Worker) -> None:
    found = measuring.measure(Task(name, 8, 64, SIZES, 0.01, 10**9))
    assert (found.layer, found.width, found.length, found.left_out) == (name, 8, 64, None)
    assert found.input_bytes == 64 * 8 * 4
    assert found.repeats >= 3
    assert found.forward is not None
    assert found.backward is not None
    assert 0 < found.forward.median < 60
    assert found.seconds == found.forward.median + found.backward.median


def test_memory_counts_the_weights_of_explicit_attention() -> None:
    if not resident.measurable():
        pytest.skip("memory is measured on Linux with glibc only")
    length = 1024
    matrix = 4 * length**2
    plan = Plan(("explicit", "fused"), (length,), (8,), SIZES, 0.01, 10**9)
    explicit, fused = measurements(plan)
    assert explicit.memory is not None
    assert fused.memory is not None
    # The softmax is kept, and its gradient and that of the scores stand beside it.
    assert 2.5 * matrix < explicit.memory < 5 * matrix
    assert fused.memory < matrix


def test_what_needs_too_much_is_left_out_and_not_tried_longer() -> None:
    if not resident.measurable():
        pytest.skip("memory is measured on Linux with glibc only")
    plan = Plan(("explicit",), (64, 1024, 1 << 20), (8,), SIZES, 0.01, 5_000_000)
    short, long, longest = measurements(plan)  # a million places would need terabytes
    assert short.left_out is None
    assert long.left_out == longest.left_out == "needs more than 0.005 GB"
    assert long.seconds is None
    assert long.memory is None


def test_an_allocation_beyond_the_limit_fails_instead_of_swapping(measuring: Worker) -> None:
    if not resident.measurable():
        pytest.skip("memory is measured on Linux with glibc only")
    found = measuring.measure(Task("explicit", 8, 1 << 19, SIZES, 0.01, 5_000_000))  # 1.1 TB for one matrix
    assert found.left_out == "needs more than 0.005 GB"
    assert measuring.measure(Task("explicit", 8, 64, SIZES, 0.01, 10**9)).left_out is None  # the next is free


def test_a_fault_in_the_measuring_process_is_told(measuring: Worker) -> None:
    with pytest.raises(SaccadeError, match=r"could not be measured.*odd kernel"):
        measuring.measure(Task("convolution", 8, 64, Sizes(kernel=4), 0.01, 10**9))


def test_median_and_spread_by_hand() -> None:
    found = timing([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median == 3.0
    assert found.spread == pytest.approx(2 / 3)
