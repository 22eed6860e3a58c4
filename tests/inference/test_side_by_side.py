from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from saccade.inference.side_by_side import LEAST, batch_share, side_by_side

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture
def three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("three_threads")
def test_as_many_work_at_once_as_there_are_cores_each_with_one():
    everybody = threading.Barrier(3, timeout=60)  # passed only if three of them stand before it together

    def work(item: int) -> tuple[int, int]:
        everybody.wait()
        return 10 * item, torch.get_num_threads()

    assert side_by_side(work, [1, 2, 3, 4, 5, 6], CPU) == [(10 * item, 1) for item in range(1, 7)]
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("items", "device"), [([], CPU), ([1], CPU), ([1, 2, 3], GPU)])
def test_one_batch_has_all_cores_and_a_gpu_one_batch_at_a_time(items, device):
    def work(item: int) -> tuple[int, int, str]:
        return item, torch.get_num_threads(), threading.current_thread().name

    here = threading.current_thread().name
    assert side_by_side(work, items, device) == [(item, 3, here) for item in items]


@pytest.mark.usefixtures("three_threads")
def test_a_fault_ends_it_and_the_cores_are_given_back():
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 0:
            raise ValueError("the first")
        return item

    with pytest.raises(ValueError, match="the first"):
        side_by_side(work, range(10_000), CPU)
    assert len(begun) < 10_000
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_batch_is_a_share_of_what_is_searched_at_once():
    assert batch_share(9 * LEAST, CPU) == 3 * LEAST
    assert batch_share(2 * LEAST, CPU) == LEAST  # not worth cutting further
    assert batch_share(7, CPU) == 7  # what the user asks for is not exceeded
    assert batch_share(9 * LEAST, GPU) == 9 * LEAST
