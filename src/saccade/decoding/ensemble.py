"""An ensemble: several models with one target vocabulary write one output together.

It obeys the interface as one wide model would: its outputs are those of its members side by side, and a layer of its
attention has the heads of all members. Only `logits` mixes them, into normalised log-probabilities; every search and
the scorer work on those as they work on any model's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError, did_you_mean
from saccade.interface import Attention, AttentionKind, Decoded, Memory, Source, Step, Translates
from saccade.symbols import Symbols

Mean = Literal["arithmetic", "geometric"]
"""The mean of the members' probabilities, or of their log-probabilities, normalised again."""


class Memories(NamedTuple):
    """What the members remember, each of its own source; batch-first, so that `select` takes rows of all."""

    members: tuple[Memory, ...]
    same_places: bool  # whether all of them attend to the same places of one source


class Ensemble:
    """Members that decode together; they may differ in all but the target vocabulary."""

    def __init__(
        self,
        members: Sequence[Translates],
        example: Source,
        *,
        mean: Mean = "arithmetic",
        weights: Sequence[float] | None = None,
    ) -> None:
        """`example` is any source that the members can read: it shows how wide their outputs are."""
        if mean not in get_args(Mean):
            raise SaccadeError(f"unknown mean '{mean}'", do=did_you_mean(mean, get_args(Mean)))
        self.members = tuple(members)
        self.mean = mean
        self.shares = shares_of(weights, len(self.members))
        self.longest = min((member.longest for member in self.members if member.longest is not None), default=None)
        self.widths = output_widths(self.members, sources_of(example, len(self.members)))

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Give each member its own of a tuple of sources, or all of them the one that there is.

        States and mask are the first member's: its places limit the length of an output and are what it covers.
        """
        sources = sources_of(source, len(self.members))
        memories = [member.encode(own, record=record) for member, own in zip(self.members, sources, strict=True)]
        first = memories[0]
        same_places = all(own is sources[0] for own in sources) and all(
            memory.mask.shape == first.mask.shape for memory in memories
        )
        looks = side_by_side([memory.attention for memory in memories], same_places)
        without = tuple(replace(memory, attention=()) for memory in memories)
        return Memory(first.states, first.mask, Memories(without, same_places), looks)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """prefix (B, T); outputs (B, T, sum of the members' D)."""
        memories = memories_of(memory)
        decoded = [
            member.decode(prefix, own, record=record)
            for member, own in zip(self.members, memories.members, strict=True)
        ]
        looks = side_by_side([each.attention for each in decoded], memories.same_places)
        return Decoded(torch.cat([each.outputs for each in decoded], dim=-1), looks)

    def start(self, memory: Memory) -> tuple[Any, ...]:
        """The members' states before the first token."""
        memories = memories_of(memory).members
        return tuple(member.start(own) for member, own in zip(self.members, memories, strict=True))

    def step(self, token: Tensor, state: tuple[Any, ...], memory: Memory, *, record: bool = False) -> Step:
        """token (B,); every member reads it."""
        memories = memories_of(memory)
        steps = [
            member.step(token, past, own, record=record)
            for member, past, own in zip(self.members, state, memories.members, strict=True)
        ]
        looks = side_by_side([each.attention for each in steps], memories.same_places)
        return Step(torch.cat([each.output for each in steps], dim=-1), tuple(each.state for each in steps), looks)

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., sum of the members' D) to log-probabilities (..., V); the logits of one member are held at a time.

        Works in place, which a gradient would not survive: an ensemble decodes and is not trained.
        """
        parts = torch.split(outputs, self.widths, dim=-1)
        total: Tensor | None = None
        for member, part, share in zip(self.members, parts, self.shares, strict=True):
            log_probabilities = member.logits(part).log_softmax(dim=-1, dtype=torch.float32)  # (..., V)
            if self.mean == "arithmetic":
                weighted = log_probabilities.add_(math.log(share))
                total = weighted if total is None else torch.logaddexp(total, weighted)
            else:
                weighted = log_probabilities.mul_(share)
                total = weighted if total is None else total.add_(weighted)
        assert total is not None
        return total if self.mean == "arithmetic" else total.log_softmax(dim=-1)

    def output_product(self, outputs: Tensor) -> None:
        """A mean of probabilities is no product."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those of all members."""
        for member in self.members:
            yield from member.parameters(recurse)

    def train(self, mode: bool = True) -> Ensemble:
        """Switch all members."""
        for member in self.members:
            member.train(mode)
        return self

    def eval(self) -> Ensemble:
        """Switch all members."""
        return self.train(False)


def shares_of(weights: Sequence[float] | None, members: int) -> tuple[float, ...]:
    """The members' weights, scaled to sum to 1; without any, equal ones."""
    if not members:
        raise SaccadeError("an ensemble has no members", do="name at least one model")
    weights = [1.0] * members if weights is None else list(weights)
    if len(weights) != members:
        raise SaccadeError(
            f"{len(weights)} weights for {members} models", do="give one weight for each model, in order"
        )
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise SaccadeError("the weights of an ensemble are above 0", do="leave out a model that should not count")
    scaled = [weight / max(weights) for weight in weights]
    if not all(scaled):
        raise SaccadeError("the weights of an ensemble are too far apart", do="leave out a model that should not count")
    return tuple(weight / math.fsum(scaled) for weight in scaled)


def sources_of(source: Source, members: int) -> tuple[Source, ...]:
    """One source for each member."""
    if isinstance(source.values, Tensor):
        return (source,) * members
    if len(source.values) != members:
        raise ValueError(f"{len(source.values)} sources for {members} members")
    return source.values


def memories_of(memory: Memory) -> Memories:
    """The members' memories in that of the ensemble."""
    memories = memory.summary
    assert isinstance(memories, Memories), "this memory is of another model"
    return memories


@torch.no_grad()
def output_widths(members: Sequence[Translates], sources: Sequence[Source]) -> list[int]:
    """How wide each member's outputs are; members whose vocabularies differ in size are refused."""
    widths: list[int] = []
    vocabularies: list[int] = []
    for member, source in zip(members, sources, strict=True):
        begin = torch.full_like(source.mask[:, :1], Symbols.begin, dtype=torch.long)
        outputs = member.decode(begin, member.encode(source)).outputs
        widths.append(outputs.size(-1))
        vocabularies.append(member.logits(outputs).size(-1))
    if len(set(vocabularies)) > 1:
        raise ValueError(f"members of one ensemble with target vocabularies of {vocabularies} tokens")
    return widths


def side_by_side(members: Sequence[Sequence[Attention]], same_places: bool) -> tuple[Attention, ...]:
    """The members' records as those of one model: each layer has the heads of all members, in their order.

    The last layers of all members are one layer, and so on backwards, so that the first layers of a deeper member are
    its own. Where the members attend to different places, only the first one's attention to the source is kept: it
    belongs to the mask of the ensemble's memory.
    """
    heads: dict[tuple[AttentionKind, int], list[Tensor]] = {}  # by kind and layer, the last layer being -1
    depths: dict[AttentionKind, int] = {}
    for number, records in enumerate(members):
        kept = [record for record in records if same_places or number == 0 or record.kind == "decoder-self"]
        own = {record.kind: max(other.layer for other in kept if other.kind == record.kind) + 1 for record in kept}
        for record in kept:
            heads.setdefault((record.kind, record.layer - own[record.kind]), []).append(record.weights)
        depths |= {kind: max(depth, depths.get(kind, 0)) for kind, depth in own.items()}
    return tuple(
        Attention(kind, layer + depths[kind], torch.cat(weights, dim=1))
        for (kind, layer), weights in sorted(heads.items(), key=lambda item: item[0])
    )
