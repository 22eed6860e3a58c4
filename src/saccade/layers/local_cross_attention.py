"""Restricted cross-attention: each target place sees the source places near its own (Luong et al. 2015, section 3.2).

Target place t is centred on source place p·t, or on the last real one if the source ends before that: the paper's
local-m, whose pace p is 1. What a target place costs does not depend on how long the source is: blocks of queries meet
only the keys that one of them may see, and the matrix of all scores never exists.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.attention import Attended, attend, merge_heads, split_heads
from saccade.layers.local_attention import SMALLEST_BLOCK
from saccade.layers.multi_head import KeysValues, cross_attention_projections, keys_and_values


class Band(NamedTuple):
    """Which source places a target place sees: `radius` on each side of the one that it is centred on."""

    radius: int
    pace: float

    def centres(self, places: Tensor, lengths: Tensor) -> Tensor:
        """The source places (B, T) of target places (T,), in sources of these lengths (B,)."""
        own = (places.double() * self.pace).round().long()
        return torch.minimum(own, (lengths - 1).clamp(min=0)[:, None])

    def sees(self, centres: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
        """(B, …, T, S): whether the centres (B, …, T) see the source places (B, …, S)."""
        near = (places[..., None, :] - centres[..., None]).abs() <= self.radius
        return near & (places < lengths.view(-1, *(1,) * (places.dim() - 1)))[..., None, :]


def local_cross_attend(
    query: Tensor, memory: KeysValues, mask: Tensor, band: Band, *, dropout: float = 0.0, record: bool = False
) -> Attended:
    """Attend from all target places, queries (B, H, T, d), to a memory of keys and values (B, H, S, d).

    `mask` (B, S) is True where a source place is real; those come first. Recorded weights are dense, (B, H, T, S).
    """
    (batch, heads, length, width), source, device = query.shape, mask.size(1), mask.device
    block = max(band.radius, SMALLEST_BLOCK)
    span = math.ceil(band.pace * (block - 1)) + 2 * band.radius + 2  # what a block may see; one more, for the rounding
    if record or source <= span:
        places = torch.arange(length, device=device)
        return dense_cross_attend(query, memory, mask, band, places, dropout=dropout, record=record)
    blocks, lengths = -(-length // block), mask.sum(1)
    centres = band.centres(torch.arange(blocks * block, device=device), lengths).view(batch, blocks, block)
    starts = (centres[:, :, 0] - band.radius).clamp(0, source - span)  # (B, N)
    seen = band.sees(centres, starts[:, :, None] + torch.arange(span, device=device), lengths)  # (B, N, block, span)
    queries = F.pad(query, (0, 0, 0, blocks * block - length)).view(batch, heads, blocks, block, width)
    queries = queries.transpose(1, 2).flatten(0, 1)  # (B·N, H, block, d)
    keys, values = slices(memory.keys, starts, span), slices(memory.values, starts, span)  # (B·N, H, span, d)
    context = F.scaled_dot_product_attention(queries, keys, values, seen.flatten(0, 1)[:, None], dropout)
    rows = context.reshape(batch, blocks, heads, block, -1).transpose(1, 2).flatten(2, 3)  # (B, H, N·block, d)
    return Attended(rows[:, :, :length], None)


def local_cross_step(query: Tensor, memory: KeysValues, mask: Tensor, band: Band, place: int) -> Attended:
    """Attend from one target place of W hypotheses, queries (B, H, W, d), to what it sees of the memory."""
    lengths, source, device = mask.sum(1), mask.size(1), mask.device
    span = min(source, 2 * band.radius + 1)
    centre = band.centres(torch.tensor([place], device=device), lengths)  # (B, 1)
    places = (centre - band.radius).clamp(0, source - span) + torch.arange(span, device=device)  # (B, span)
    own = places[:, None, :, None]  # (B, 1, span, 1)
    keys, values = (part.gather(2, own.expand(-1, part.size(1), -1, part.size(3))) for part in memory)
    return attend(query, keys, values, band.sees(centre, places, lengths)[:, None])


def dense_cross_attend(
    query: Tensor,
    memory: KeysValues,
    mask: Tensor,
    band: Band,
    places: Tensor,
    *,
    dropout: float = 0.0,
    record: bool = False,
) -> Attended:
    """The same with all scores and a mask: queries (B, H, T, d) of target places (T,), or all of the one place (1,)."""
    lengths = mask.sum(1)
    source = torch.arange(mask.size(1), device=mask.device).expand_as(mask)
    seen = band.sees(band.centres(places, lengths), source, lengths)  # (B, T, S), or (B, 1, S)
    return attend(query, *memory, seen[:, None], dropout=dropout, record=record)


def slices(x: Tensor, starts: Tensor, span: int) -> Tensor:
    """Of each row of x (B, H, S, d) the `span` places from each of its starts (B, N) on: (B·N, H, span, d)."""
    cut: Tensor = Slices.apply(x.transpose(1, 2), starts, span)  # type: ignore[no-untyped-call]
    return cut.transpose(1, 2)


class Slices(torch.autograd.Function):
    """Slices of sequences that may overlap; the way back adds them slice by slice, which `index_put_` does by entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, starts: Tensor, span: int) -> Tensor:
        """x (B, S, H, d) to (B·N, span, H, d)."""
        ctx.shape, ctx.starts = x.shape, starts
        rows = torch.arange(len(starts), device=x.device)[:, None, None]
        return x[rows, starts[:, :, None] + torch.arange(span, device=x.device)].flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Each place gets the sum over the slices it stood in."""
        batch, blocks = ctx.starts.shape
        span = gradient.size(1)
        pieces, whole = gradient.reshape(batch, blocks, *gradient.shape[1:]), gradient.new_zeros(ctx.shape)
        for row, starts in enumerate(ctx.starts.tolist()):
            for piece, start in enumerate(starts):
                whole[row, start : start + span] += pieces[row, piece]
        return whole, None, None


class LocalCrossAttention(nn.Module):
    """Multi-head cross-attention within a band; parameters as `CrossAttention`."""

    def __init__(self, width: int, heads: int, band: Band, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.band = band
        self.dropout = dropout
        self.query, self.key_value, self.output = cross_attention_projections(width, width)

    def project(self, states: Tensor) -> KeysValues:
        """Keys and values of a memory (B, S, D); in decoding they are made once."""
        return keys_and_values(self.key_value(states), self.heads)

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor, *, record: bool = False) -> Attended:
        """All target places x (B, T, D); mask (B, S)."""
        query, dropout = split_heads(self.query(x), self.heads), self.dropout if self.training else 0.0
        return self.finish(local_cross_attend(query, memory, mask, self.band, dropout=dropout, record=record))

    def step(self, x: Tensor, memory: KeysValues, mask: Tensor, place: int, *, record: bool = False) -> Attended:
        """One target place of W hypotheses x (B, W, D), mask (B, S); its cost is constant."""
        query = split_heads(self.query(x), self.heads)
        if record:
            places = torch.tensor([place], device=mask.device)
            return self.finish(dense_cross_attend(query, memory, mask, self.band, places, record=True))
        return self.finish(local_cross_step(query, memory, mask, self.band, place))

    def finish(self, attended: Attended) -> Attended:
        """The heads' contexts as one vector again."""
        return Attended(self.output(merge_heads(attended.context)), attended.weights)
