"""Attention of one more place of each hypothesis, on the kernels: no cache is ever copied or reordered.

What a step projects stays where it was made. A hypothesis remembers in which row of each earlier step its own past
stands, and only these numbers are reordered with it; steps are never written over, so states may be branched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.interface import OfMemory, Shared
from saccade.kernels import kernel
from saccade.layers.attention import Attended
from saccade.layers.packed import Packed, row_product


class Past(NamedTuple):
    """The places before, of each hypothesis."""

    origin: Tensor  # (N, t) the row of the hypothesis at each earlier step
    steps: Shared[tuple[Tensor, ...]]  # t times (N at that step, 3D): queries, keys and values, without their bias

    @property
    def place(self) -> int:
        """How many places there are: the place of the next token."""
        return self.origin.size(1)


class MemoryRows(NamedTuple):
    """Keys and values of a packed memory."""

    first: Tensor  # (B,) the first row of each sentence
    counts: Tensor  # (B,) how many rows it has
    rows: Shared[Tensor]  # (M, 2D) without their bias


def no_past(rows: int) -> Past:
    """Before the first place."""
    return Past(torch.empty(rows, 0, dtype=torch.int64), Shared(()))


def memory_rows(projection: nn.Linear, states: Tensor, places: Packed) -> OfMemory[MemoryRows]:
    """Project a packed memory (M, D) once and for all."""
    return OfMemory(MemoryRows(places.starts[:-1], places.starts.diff(), Shared(row_product(states, projection))))


def attend_past(projection: nn.Linear, x: Tensor, past: Past, heads: int, record: bool) -> tuple[Attended, Past]:
    """One more place x (N, D) of each hypothesis to its past and itself; the context has no output projection yet."""
    projected = row_product(x, projection)  # (N, 3D)
    rows, width = x.shape
    itself = torch.arange(rows)[:, None]
    past = Past(torch.cat([past.origin, itself], 1), Shared((*past.steps.value, projected)))
    addresses = torch.tensor([step.data_ptr() for step in past.steps.value])
    context = torch.empty_like(x)
    weights = x.new_empty(rows, heads, 1, past.place) if record else None
    kernel(
        *("attend_past", rows, heads, width // heads, past.place, addresses.data_ptr(), past.origin.data_ptr()),
        *(projected.data_ptr(), projection.bias.data_ptr(), context.data_ptr()),
        None if weights is None else weights.data_ptr(),
    )
    return Attended(context, weights), past


def attend_memory(
    projection: nn.Linear, key_value: nn.Linear, x: Tensor, memory: MemoryRows, mask: Tensor, heads: int, record: bool
) -> Attended:
    """One place x (N, D) of each hypothesis to the memory of its sentence, mask (B, S); N = B·W."""
    query = row_product(x, projection)  # (N, D)
    rows, width = x.shape
    context = torch.empty_like(x)
    weights = x.new_zeros(rows, heads, 1, mask.size(1)) if record else None
    beam = rows // max(1, mask.size(0))
    kernel(
        *("attend_memory", rows, heads, width // heads, beam, mask.size(1)),
        *(memory.first.data_ptr(), memory.counts.data_ptr(), memory.rows.value.data_ptr(), query.data_ptr()),
        *(projection.bias.data_ptr(), key_value.bias[width:].data_ptr(), context.data_ptr()),
        None if weights is None else weights.data_ptr(),
    )
    return Attended(context, weights)
