from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.studies.complexity.layers import LAYERS, LayerSizes
from saccade.studies.complexity.path_lengths import (
    connects,
    dependence,
    longest_chain,
    longest_path,
    position_groups,
    sequential_steps,
    smallest_stack,
)

WIDTH = 4


def convolution(kernel: int, dilation: int = 1):
    """A convolution of torch, whose reach is known."""
    torch.manual_seed(dilation)
    layer = nn.Conv1d(WIDTH, WIDTH, kernel, padding=(kernel - 1) // 2 * dilation, dilation=dilation).double()
    return lambda x: layer(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize(("kernel", "length"), [(3, 9), (5, 10), (5, 11), (7, 11), (3, 2)])
def test_a_stack_of_convolutions(kernel: int, length: int) -> None:
    reach = (kernel - 1) // 2
    assert smallest_stack(lambda index: convolution(kernel), length, WIDTH) == math.ceil((length - 1) / reach)


@pytest.mark.parametrize(("length", "layers"), [(2, 1), (8, 3), (9, 4), (16, 4), (17, 5)])
def test_dilations_that_double(length: int, layers: int) -> None:
    assert smallest_stack(lambda index: convolution(3, 2**index), length, WIDTH) == layers


def test_dependence_of_one_convolution_is_a_band() -> None:
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    positions = torch.arange(6)
    near = (positions[:, None] - positions).abs() <= 1
    assert torch.equal(dependence([convolution(3)], x, list(range(6))), near)
    assert torch.equal(dependence([convolution(3)] * 2, x, [5, 0]), (positions - torch.tensor([[5], [0]])).abs() <= 2)


def test_a_recurrence_is_causal() -> None:
    layer = nn.GRU(WIDTH, WIDTH, batch_first=True).double()
    runs = [lambda x: layer(x)[0]]
    assert connects(runs, 12, WIDTH, causal=True)
    assert not connects(runs, 12, WIDTH)


def test_layers_that_do_not_mix_positions_are_refused() -> None:
    with pytest.raises(SaccadeError):
        smallest_stack(lambda index: torch.tanh, 4, WIDTH)


@pytest.mark.parametrize("length", [1, 2, 3, 65, 66, 67, 200])
def test_every_output_is_checked_once(length: int) -> None:
    assert sorted(position for group in position_groups(length) for position in group) == list(range(length))


def test_the_longest_chain_by_hand() -> None:
    x = torch.ones(3, requires_grad=True)

    def squares(times: int) -> Tensor:
        y = x * 1.0
        for _ in range(times):
            y = y * y
        return y

    assert longest_chain(squares(30)) - longest_chain(squares(10)) == 20  # 2^30 paths, each node visited once
    assert longest_chain(squares(5) + x) == longest_chain(squares(5)) + 1


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("sizes", [LayerSizes(kernel=3, radius=3), LayerSizes(kernel=5, radius=2, heads=2)])
def test_measured_path_lengths_equal_the_formulas_of_the_paper(name: str, sizes: LayerSizes) -> None:
    layer = LAYERS[name]
    for length in (2, 11):
        found = longest_path(layer, length, sizes)
        assert found.length == layer.path_length(length, sizes)
        assert found.steps == (length if name == "recurrent" else 1)


def test_paths_by_hand() -> None:
    sizes = LayerSizes(kernel=3, radius=4)
    found = {name: layer.path_length(16, sizes) for name, layer in LAYERS.items()}
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
    assert sequential_steps(LAYERS["recurrent"], 10, LayerSizes(radius=2)) == 10
    assert sequential_steps(LAYERS["restricted"], 10, LayerSizes(radius=2)) == 1
