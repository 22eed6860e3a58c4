"""How far a signal travels: which inputs each output of a real stack of layers depends on, found by gradients.

A path counts every dependent step on it: the layers of the stack, times the steps that one layer takes in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.studies.complexity.subjects import Sizes, Subject

Run = Callable[[Tensor], Tensor]
"""A layer with its weights: (B, T, D) to (B, T, D)."""

WIDTH_OF_A_HEAD = 4
ROWS = 64  # output places that are followed back at the same time
SEED = 0


class SignalPath(NamedTuple):
    """The longest way of a signal among so many places."""

    layers: int
    """Of the smallest stack in which every output has heard of every input it may see."""
    steps: int
    """Of each of them, that wait for each other."""

    @property
    def length(self) -> int:
        """All dependent steps on it."""
        return self.layers * self.steps


def longest_path(subject: Subject, places: int, sizes: Sizes) -> SignalPath:
    """Found in real stacks of the layer, with random weights."""
    layers = smallest_stack(
        lambda place: layer_of(subject, sizes, place), places, width_for(sizes), one_way=subject.one_way
    )
    return SignalPath(layers, sequential_steps(subject, places, sizes))


def width_for(sizes: Sizes) -> int:
    """Which places depend on which is no matter of width: a small one does."""
    return WIDTH_OF_A_HEAD * sizes.heads


def layer_of(subject: Subject, sizes: Sizes, place: int) -> Run:
    """A layer with random weights; in float64, so that no gradient on a long way becomes 0 by rounding."""
    torch.manual_seed(SEED + place)
    layer = subject.build(width_for(sizes), sizes, place).double()
    return lambda x: subject.run(layer, x)


def smallest_stack(layer_at: Callable[[int], Run], places: int, width: int, *, one_way: bool = False) -> int:
    """The fewest layers with which every output place depends on every input place, or on those up to its own.

    The stack doubles until it is enough; then the number is halved in upon.
    """
    layers: list[Run] = []
    too_few, enough = 0, 1
    while True:
        layers += [layer_at(place) for place in range(len(layers), enough)]
        if connects(layers[:enough], places, width, one_way=one_way):
            break
        if enough >= 2 * places:
            raise SaccadeError(
                f"{enough} layers do not connect {places} places",
                do="a layer that mixes neighbouring places needs at most one layer less than there are places",
            )
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if connects(layers[:middle], places, width, one_way=one_way):
            enough = middle
        else:
            too_few = middle
    return enough


def connects(layers: list[Run], places: int, width: int, *, one_way: bool = False) -> bool:
    """Whether each output of the stack depends on all inputs, or on all up to its own place."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(1, places, width, generator=generator, dtype=torch.float64)
    needed = torch.ones(places, places, dtype=torch.bool)
    if one_way:
        needed = needed.tril()
    return all(bool((dependence(layers, x, rows) | ~needed[rows]).all()) for rows in row_groups(places))


def row_groups(places: int) -> Iterator[list[int]]:
    """All output places in groups: the two ends first, which a signal reaches last."""
    ends = sorted({0, places - 1})
    yield ends
    for start, end in pairwise([*range(1, places - 1, ROWS), places - 1]):
        yield list(range(start, end))


def dependence(layers: list[Run], x: Tensor, rows: list[int]) -> Tensor:
    """On which inputs the outputs at the places `rows` depend: (rows, T), from x (1, T, D).

    Between two layers the values, and at each place the gradient, are brought back to size 1. Neither adds or removes
    a dependence, and no number vanishes on the way through a hundred layers.
    """
    values = x.expand(len(rows), -1, -1)  # one copy for each output that is followed back
    passes: list[tuple[Tensor, Tensor]] = []
    for layer in layers:
        inputs = values.detach().requires_grad_()
        outputs = layer(inputs)
        passes.append((inputs, outputs))
        values = outputs / outputs.detach().abs().max()
    gradient = torch.zeros_like(values)
    gradient[torch.arange(len(rows)), rows] = torch.randn(
        len(rows), x.size(-1), generator=torch.Generator().manual_seed(SEED), dtype=x.dtype
    )
    for inputs, outputs in reversed(passes):
        (gradient,) = torch.autograd.grad(outputs, inputs, gradient)
        largest = gradient.abs().amax(-1, keepdim=True)  # (rows, T, 1)
        gradient = gradient / largest.masked_fill(largest == 0, 1.0)
    return gradient.abs().amax(-1) > 0


def sequential_steps(subject: Subject, places: int, sizes: Sizes) -> int:
    """How many steps of one layer must wait for each other, counted in the graph that autograd records.

    A chain of operations that grows with the sequence is a recurrence: what one more place adds to it is one step. In
    float64 torch has no fused kernel for recurrent layers, which would hide the steps in one node.
    """
    long = 2 * max(places, 2 * sizes.radius)  # beyond any block of restricted attention
    growth = chain(subject, 2 * long, sizes) - chain(subject, long, sizes)
    if growth <= 0:
        return 1
    return 1 + round((chain(subject, places, sizes) - chain(subject, 1, sizes)) * long / growth)


def chain(subject: Subject, places: int, sizes: Sizes) -> int:
    """The length of the longest chain of dependent operations from the inputs to the outputs of one layer."""
    x = torch.ones(1, places, width_for(sizes), dtype=torch.float64, requires_grad=True)
    return longest_chain(layer_of(subject, sizes, 0)(x))


def longest_chain(outputs: Tensor) -> int:
    """The number of nodes on the longest way through the graph behind `outputs`."""
    assert outputs.grad_fn is not None
    depths: dict[object, int] = {}
    waiting = [outputs.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [earlier for earlier, _ in node.next_functions if earlier is not None]
        unknown = [earlier for earlier in before if earlier not in depths]
        if unknown and node not in depths:
            waiting += unknown
        else:
            depths.setdefault(node, 1 + max((depths[earlier] for earlier in before), default=0))
            waiting.pop()
    return depths[outputs.grad_fn]
