"""Attention of one more place of each hypothesis, on the kernels: no cache is ever copied or reordered.

What a step projects stays where it was made. A hypothesis remembers in which row of each earlier step its own past
stands, and only these numbers are reordered with it; steps are never written over, so states may be branched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.csrc.library import kernel
from saccade.interface import Shared
from saccade.layers.attention import Attended
from saccade.layers.packed import row_product


class Past(NamedTuple):
    """The places before, of each hypothesis, in all layers."""

    origin: Tensor  # (N, t) the row of the hypothesis at each earlier step
    steps: Shared[tuple[Tensor, ...]]  # t times (L, N at that step, 3D): queries (or nothing), keys and values, no bias
    where: Shared[Tensor]  # (2, t): the address of each, and the bytes from a layer to the next

    @property
    def place(self) -> int:
        """How many places there are: the place of the next token."""
        return self.origin.size(1)

    def addresses(self, layer: int) -> Tensor:
        """Where the rows of a layer are, at each step (t,)."""
        return self.where.value[0] + layer * self.where.value[1]


class MemoryRows(NamedTuple):
    """Keys and values of a packed memory, in all layers."""

    first: Tensor  # (B,) the first row of each sentence
    counts: Tensor  # (B,) how many rows it has
    rows: Shared[Tensor]  # (L, M, 2D) without their bias


def no_past(rows: int) -> Past:
    """Before the first place."""
    nowhere = torch.empty(2, 0, dtype=torch.int64)
    return Past(torch.empty(rows, 0, dtype=torch.int64), Shared(()), Shared(nowhere))


def further(past: Past, step: Tensor) -> Past:
    """The past with one more place, whose projections (L, N, 3D) the layers are going to write."""
    itself = torch.arange(step.size(1))[:, None]
    where = torch.tensor([[step.data_ptr()], [step.element_size() * step.stride(0)]])
    return Past(
        torch.cat([past.origin, itself], 1),
        Shared((*past.steps.value, step)),
        Shared(torch.cat([past.where.value, where], 1)),
    )


def attend_past(projection: nn.Linear, x: Tensor, past: Past, layer: int, heads: int, record: bool) -> Attended:
    """The last place x (N, D) of each hypothesis to its past and itself; the context has no output projection yet."""
    rows, width = x.shape
    projected = past.steps.value[-1][layer]  # (N, 3D)
    with torch.no_grad():
        torch.mm(x, projection.weight.t(), out=projected)
    context = torch.empty_like(x)
    weights = x.new_empty(rows, heads, 1, past.place) if record else None
    addresses = past.addresses(layer)
    kernel(
        *("kv_cache_attention", rows, heads, width // heads, past.place, addresses.data_ptr(), past.origin.data_ptr()),
        *(projected.data_ptr(), projection.bias.data_ptr(), context.data_ptr()),
        None if weights is None else weights.data_ptr(),
    )
    return Attended(context, weights)


def attend_memory(
    projection: nn.Linear,
    key_value: nn.Linear,
    x: Tensor,
    memory: MemoryRows,
    layer: int,
    mask: Tensor,
    heads: int,
    record: bool,
) -> Attended:
    """One place x (N, D) of each hypothesis to the memory of its sentence, mask (B, S); N = B·W."""
    query = row_product(x, projection)  # (N, D)
    rows, width = x.shape
    context = torch.empty_like(x)
    weights = x.new_zeros(rows, heads, 1, mask.size(1)) if record else None
    beam = rows // max(1, mask.size(0))
    kernel(
        *("memory_attention", rows, heads, width // heads, beam, mask.size(1)),
        *(memory.first.data_ptr(), memory.counts.data_ptr(), memory.rows.value[layer].data_ptr(), query.data_ptr()),
        *(projection.bias.data_ptr(), key_value.bias[width:].data_ptr(), context.data_ptr()),
        None if weights is None else weights.data_ptr(),
    )
    return Attended(context, weights)
