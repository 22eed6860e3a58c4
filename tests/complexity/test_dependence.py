from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.studies.complexity.paths import (
    connects,
    dependence,
    longest_chain,
    longest_path,
    row_groups,
    sequential_steps,
    smallest_stack,
)
from saccade.studies.complexity.subjects import SUBJECTS, Sizes

WIDTH = 4


def convolution(kernel: int, dilation: int = 1):
    """The library's own convolution, whose reach is known by hand."""
    torch.manual_seed(dilation)
    layer = nn.Conv1d(WIDTH, WIDTH, kernel, padding=(kernel - 1) // 2 * dilation, dilation=dilation).double()
    return lambda x: layer(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize(("kernel", "places"), [(3, 9), (5, 10), (5, 11), (7, 11), (3, 2)])
def test_a_stack_of_convolutions(kernel: int, places: int) -> None:
    reach = (kernel - 1) // 2
    assert smallest_stack(lambda place: convolution(kernel), places, WIDTH) == math.ceil((places - 1) / reach)


@pytest.mark.parametrize(("places", "layers"), [(2, 1), (8, 3), (9, 4), (16, 4), (17, 5)])
def test_dilations_that_double(places: int, layers: int) -> None:
    assert smallest_stack(lambda place: convolution(3, 2**place), places, WIDTH) == layers


def test_dependence_of_one_convolution_is_a_band() -> None:
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    places = torch.arange(6)
    near = (places[:, None] - places).abs() <= 1
    assert torch.equal(dependence([convolution(3)], x, list(range(6))), near)
    assert torch.equal(dependence([convolution(3)] * 2, x, [5, 0]), (places - torch.tensor([[5], [0]])).abs() <= 2)


def test_a_recurrence_looks_back_only() -> None:
    layer = nn.GRU(WIDTH, WIDTH, batch_first=True).double()
    runs = [lambda x: layer(x)[0]]
    assert connects(runs, 12, WIDTH, one_way=True)
    assert not connects(runs, 12, WIDTH)


def test_layers_that_never_mix_places_are_refused() -> None:
    with pytest.raises(SaccadeError, match="do not connect 4 places"):
        smallest_stack(lambda place: torch.tanh, 4, WIDTH)


@pytest.mark.parametrize("places", [1, 2, 3, 65, 66, 67, 200])
def test_every_output_is_looked_at_once(places: int) -> None:
    assert sorted(row for rows in row_groups(places) for row in rows) == list(range(places))


def test_the_longest_chain_by_hand() -> None:
    x = torch.ones(3, requires_grad=True)

    def squares(times: int) -> Tensor:
        y = x * 1.0
        for _ in range(times):
            y = y * y
        return y

    assert longest_chain(squares(30)) - longest_chain(squares(10)) == 20  # 2^30 ways, each node seen once
    assert longest_chain(squares(5) + x) == longest_chain(squares(5)) + 1


@pytest.mark.parametrize("name", list(SUBJECTS))
@pytest.mark.parametrize("sizes", [Sizes(kernel=3, radius=3), Sizes(kernel=5, radius=2, heads=2)])
def test_our_layers_have_the_paths_of_the_paper(name: str, sizes: Sizes) -> None:
    subject = SUBJECTS[name]
    for places in (2, 11):
        found = longest_path(subject, places, sizes)
        assert found.length == subject.longest_path(places, sizes)
        assert found.steps == (places if name == "recurrent" else 1)


def test_paths_by_hand() -> None:
    sizes = Sizes(kernel=3, radius=4)
    found = {name: subject.longest_path(16, sizes) for name, subject in SUBJECTS.items()}
    assert found == {
        "explicit": 1,
        "fused": 1,
        "restricted": 4,
        "recurrent": 16,
        "convolution": 15,
        "dilated": 4,
        "separable": 15,
    }


def test_sequential_operations() -> None:
    assert sequential_steps(SUBJECTS["recurrent"], 10, Sizes(radius=2)) == 10
    assert sequential_steps(SUBJECTS["restricted"], 10, Sizes(radius=2)) == 1
