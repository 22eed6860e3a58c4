"""Maximum path length between two positions, measured by the gradients of real stacks of a layer.

The path length is the number of layers of the smallest stack in which every output depends on every input, times the
sequential operations of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.studies.complexity.layers import Layer, LayerSizes

Run = Callable[[Tensor], Tensor]
"""Function that runs a layer with its weights: (B, T, D) to (B, T, D)."""

HEAD_WIDTH = 4
OUTPUTS_AT_ONCE = 64  # output positions whose gradients are computed in one batch
SEED = 0


class SignalPath(NamedTuple):
    """The longest path between two positions."""

    layers: int
    """Layers of the smallest stack in which every output depends on every input that it may see."""
    steps: int
    """Sequential operations of each layer."""

    @property
    def length(self) -> int:
        """Number of dependent operations on the path."""
        return self.layers * self.steps


def longest_path(layer: Layer, length: int, sizes: LayerSizes) -> SignalPath:
    """Find the longest path between `length` positions, in real stacks of the layer with random weights."""
    layers = smallest_stack(lambda index: random_layer(layer, sizes, index), length, width_for(sizes), layer.causal)
    return SignalPath(layers, sequential_steps(layer, length, sizes))


def width_for(sizes: LayerSizes) -> int:
    """Return a small width; the width does not change which positions depend on which."""
    return HEAD_WIDTH * sizes.heads


def random_layer(layer: Layer, sizes: LayerSizes, index: int) -> Run:
    """Build a layer with random weights, in float64, so that no gradient on a long path underflows to 0."""
    torch.manual_seed(SEED + index)
    module = layer.build(width_for(sizes), sizes, index).double()
    return lambda x: layer.run(module, x)


def smallest_stack(layer_at: Callable[[int], Run], length: int, width: int, causal: bool = False) -> int:
    """Return the smallest number of layers that connects every output with every input (causal: every earlier input).

    The stack doubles until it is large enough; then a bisection finds the number.
    """
    layers: list[Run] = []
    too_few, enough = 0, 1
    while True:
        layers += [layer_at(index) for index in range(len(layers), enough)]
        if connects(layers[:enough], length, width, causal):
            break
        if enough >= 2 * length:
            raise SaccadeError(
                f"{enough} layers do not connect {length} positions",
                hint="a layer that mixes neighboring positions needs fewer layers than there are positions",
            )
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if connects(layers[:middle], length, width, causal):
            enough = middle
        else:
            too_few = middle
    return enough


def connects(layers: list[Run], length: int, width: int, causal: bool = False) -> bool:
    """Return whether each output of the stack depends on all inputs (causal: on all up to its own position)."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(1, length, width, generator=generator, dtype=torch.float64)
    needed = torch.ones(length, length, dtype=torch.bool)
    if causal:
        needed = needed.tril()
    return all(
        bool((dependence(layers, x, positions) | ~needed[positions]).all()) for positions in position_groups(length)
    )


def position_groups(length: int) -> Iterator[list[int]]:
    """Yield all output positions in groups: first both ends, which need the longest paths."""
    yield sorted({0, length - 1})
    for start, end in pairwise([*range(1, length - 1, OUTPUTS_AT_ONCE), length - 1]):
        yield list(range(start, end))


def dependence(layers: list[Run], x: Tensor, positions: list[int]) -> Tensor:
    """Return a mask (N, T) for x (1, T, D): True = the output at a position depends on the input.

    Values between two layers, and the gradient at each position, are rescaled to magnitude 1. This neither adds nor
    removes a dependence, and no gradient vanishes in a stack of a hundred layers.
    """
    values = x.expand(len(positions), -1, -1)  # (N, T, D): one copy for each output position
    passes: list[tuple[Tensor, Tensor]] = []
    for layer in layers:
        inputs = values.detach().requires_grad_()
        outputs = layer(inputs)
        passes.append((inputs, outputs))
        values = outputs / outputs.detach().abs().max()
    gradient = torch.zeros_like(values)
    gradient[torch.arange(len(positions)), positions] = torch.randn(
        len(positions), x.size(-1), generator=torch.Generator().manual_seed(SEED), dtype=x.dtype
    )
    for inputs, outputs in reversed(passes):
        (gradient,) = torch.autograd.grad(outputs, inputs, gradient)
        largest = gradient.abs().amax(-1, keepdim=True)  # (N, T, 1)
        gradient = gradient / largest.masked_fill(largest == 0, 1.0)
    return gradient.abs().amax(-1) > 0


def sequential_steps(layer: Layer, length: int, sizes: LayerSizes) -> int:
    """Count the sequential operations of one layer in its autograd graph.

    A chain of operations that grows with the sequence is a recurrence: the operations that one more position adds are
    one step. In float64, torch has no fused kernel for recurrent layers, which would hide the steps in one node.
    """
    long = 2 * max(length, 2 * sizes.radius)  # longer than any block of restricted attention
    growth = chain_length(layer, 2 * long, sizes) - chain_length(layer, long, sizes)
    if growth <= 0:
        return 1
    return 1 + round((chain_length(layer, length, sizes) - chain_length(layer, 1, sizes)) * long / growth)


def chain_length(layer: Layer, length: int, sizes: LayerSizes) -> int:
    """Return the length of the longest chain of dependent operations from inputs to outputs of one layer."""
    x = torch.ones(1, length, width_for(sizes), dtype=torch.float64, requires_grad=True)
    return longest_chain(random_layer(layer, sizes, 0)(x))


def longest_chain(outputs: Tensor) -> int:
    """Return the number of nodes on the longest path through the autograd graph of `outputs`."""
    assert outputs.grad_fn is not None
    depths: dict[object, int] = {}
    stack = [outputs.grad_fn]
    while stack:
        node = stack[-1]
        inputs = [earlier for earlier, _ in node.next_functions if earlier is not None]
        unknown = [earlier for earlier in inputs if earlier not in depths]
        if unknown and node not in depths:
            stack += unknown
        else:
            depths.setdefault(node, 1 + max((depths[earlier] for earlier in inputs), default=0))
            stack.pop()
    return depths[outputs.grad_fn]
