"""Ensembles: several models with one target vocabulary decode one output together.

An ensemble satisfies the interface like one wide model: its outputs are those of its members, concatenated, and its
attention layers have the heads of all members. Only `logits` combines them, into normalized log-probabilities, so that
every search and the scorer work as for any model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from saccade.arguments import check_choice, check_numbers
from saccade.errors import SaccadeError
from saccade.interface import Attention, AttentionKind, Decoded, EncoderDecoder, Memory, Source, Step, TranslationModel
from saccade.symbols import Symbols

Mean = Literal["arithmetic", "geometric"]
"""The mean of the members' probabilities, or of their log-probabilities, normalized again."""

Member = TypeVar("Member", bound=EncoderDecoder)
Other = TypeVar("Other", bound=EncoderDecoder)


class MemberMemories(NamedTuple):
    """The memories of all members; batch-first, so that `select` takes rows of all."""

    members: tuple[Memory, ...]
    same_positions: bool  # whether all members attend to the same positions of one source


class Ensemble(Generic[Member]):
    """Models that decode together; they may differ in everything but the target vocabulary."""

    def __init__(
        self,
        members: Sequence[Member],
        example: Source,
        *,
        mean: Mean = "arithmetic",
        weights: Sequence[float] | None = None,
    ) -> None:
        """`example` is any source: the widths of the members' outputs are measured on it."""
        check_choice(mean, "mean", get_args(Mean))
        self.members = tuple(members)
        self.mean = mean
        self.shares = shares_of(weights, len(self.members))
        self.max_target_positions = min(
            (member.max_target_positions for member in self.members if member.max_target_positions is not None),
            default=None,
        )
        self.widths = output_widths(self.members, sources_of(example, len(self.members)))

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode a tuple of sources, one per member, or one source for all members.

        States and mask are those of the first member: its source positions define length limits and coverage.
        """
        sources = sources_of(source, len(self.members))
        memories = [member.encode(own, record=record) for member, own in zip(self.members, sources, strict=True)]
        first = memories[0]
        same_positions = all(own is sources[0] for own in sources) and all(
            memory.mask.shape == first.mask.shape for memory in memories
        )
        attention = concat_attention([memory.attention for memory in memories], same_positions)
        own_memories = tuple(replace(memory, attention=()) for memory in memories)
        return Memory(first.states, first.mask, MemberMemories(own_memories, same_positions), attention)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode a prefix (B, T) with all members; outputs (B, T, sum of the members' D)."""
        memories = memories_of(memory)
        decoded = [
            member.decode(prefix, own, record=record)
            for member, own in zip(self.members, memories.members, strict=True)
        ]
        attention = concat_attention([each.attention for each in decoded], memories.same_positions)
        return Decoded(torch.cat([each.outputs for each in decoded], dim=-1), attention)

    def start(self, memory: Memory) -> tuple[Any, ...]:
        """Return the members' states before the first token."""
        memories = memories_of(memory).members
        return tuple(member.start(own) for member, own in zip(self.members, memories, strict=True))

    def step(self, token: Tensor, state: tuple[Any, ...], memory: Memory, *, record: bool = False) -> Step:
        """Decode one position with all members; token (N,)."""
        memories = memories_of(memory)
        steps = [
            member.step(token, member_state, own, record=record)
            for member, member_state, own in zip(self.members, state, memories.members, strict=True)
        ]
        attention = concat_attention([each.attention for each in steps], memories.same_positions)
        return Step(torch.cat([each.output for each in steps], dim=-1), tuple(each.state for each in steps), attention)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return log-probabilities (..., V) from outputs (..., sum of the members' D), one member at a time.

        The sums are in place and have no backward pass: an ensemble decodes and is not trained.
        """
        member_outputs = torch.split(outputs, self.widths, dim=-1)
        total: Tensor | None = None
        for member, own, share in zip(self.members, member_outputs, self.shares, strict=True):
            log_probabilities = member.logits(own).log_softmax(dim=-1, dtype=torch.float32)  # (..., V)
            if self.mean == "arithmetic":
                weighted = log_probabilities.add_(math.log(share))
                total = weighted if total is None else torch.logaddexp(total, weighted)
            else:
                weighted = log_probabilities.mul_(share)
                total = weighted if total is None else total.add_(weighted)
        assert total is not None
        return total if self.mean == "arithmetic" else total.log_softmax(dim=-1)

    def output_projection(self, outputs: Tensor) -> None:
        """None: a mean of probabilities is not a matrix product."""

    def with_members(self, members: Sequence[Other]) -> Ensemble[Other]:
        """Return an ensemble of other models with the same outputs, such as plans of the members."""
        other = cast(Ensemble[Other], copy.copy(self))
        other.members = tuple(members)
        return other

    def parameters(self: Ensemble[TranslationModel], recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of all members."""
        for member in self.members:
            yield from member.parameters(recurse)

    def train(self: Ensemble[TranslationModel], mode: bool = True) -> Ensemble[TranslationModel]:
        """Set the training mode of all members."""
        for member in self.members:
            member.train(mode)
        return self

    def eval(self: Ensemble[TranslationModel]) -> Ensemble[TranslationModel]:
        """Set the evaluation mode of all members."""
        return self.train(False)


def shares_of(weights: Sequence[float] | None, members: int) -> tuple[float, ...]:
    """Return the members' weights, scaled to sum to 1; equal by default."""
    if not members:
        raise SaccadeError("the ensemble has no members", hint="name at least one model")
    if weights is not None:
        check_numbers(weights, "weights")
    weights = [1.0] * members if weights is None else list(weights)
    if len(weights) != members:
        raise SaccadeError(
            f"{len(weights)} weights for {members} models", hint="give one weight for each model, in order"
        )
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise SaccadeError("the weights of an ensemble must be above 0", hint="leave out a model that should not count")
    scaled = [weight / max(weights) for weight in weights]
    if not all(scaled):
        raise SaccadeError(
            "the weights of an ensemble differ by too many orders of magnitude",
            hint="leave out a model that should not count",
        )
    return tuple(weight / math.fsum(scaled) for weight in scaled)


def sources_of(source: Source, members: int) -> tuple[Source, ...]:
    """Return one source for each member."""
    if isinstance(source.values, Tensor):
        return (source,) * members
    if len(source.values) != members:
        raise ValueError(f"{len(source.values)} sources for {members} members")
    return source.values


def memories_of(memory: Memory) -> MemberMemories:
    """Return the members' memories, from a memory of the ensemble."""
    memories = memory.extra
    assert isinstance(memories, MemberMemories), "this memory belongs to another model"
    return memories


@torch.no_grad()
def output_widths(members: Sequence[EncoderDecoder], sources: Sequence[Source]) -> list[int]:
    """Return the width D of each member's outputs; an error if their vocabularies differ in size."""
    widths: list[int] = []
    vocabularies: list[int] = []
    for member, source in zip(members, sources, strict=True):
        begin = torch.full_like(source.mask[:, :1], Symbols.begin, dtype=torch.long)
        outputs = member.decode(begin, member.encode(source)).outputs
        widths.append(outputs.size(-1))
        vocabularies.append(member.logits(outputs).size(-1))
    if len(set(vocabularies)) > 1:
        raise ValueError(f"the members of an ensemble have target vocabularies of different sizes: {vocabularies}")
    return widths


def concat_attention(members: Sequence[Sequence[Attention]], same_positions: bool) -> tuple[Attention, ...]:
    """Return attention records with the heads of all members, in their order.

    Layers are matched from the last one backwards, so that the first layers of a deeper member have its heads only. If
    the members attend to different source positions, only the first member's attention to the source is kept: it
    belongs to the mask of the ensemble's memory.
    """
    heads: dict[tuple[AttentionKind, int], list[Tensor]] = {}  # by kind and layer, the last layer being -1
    depths: dict[AttentionKind, int] = {}
    for number, records in enumerate(members):
        kept = [record for record in records if same_positions or number == 0 or record.kind == "decoder-self"]
        own = {record.kind: max(other.layer for other in kept if other.kind == record.kind) + 1 for record in kept}
        for record in kept:
            heads.setdefault((record.kind, record.layer - own[record.kind]), []).append(record.weights)
        depths |= {kind: max(depth, depths.get(kind, 0)) for kind, depth in own.items()}
    return tuple(
        Attention(kind, layer + depths[kind], torch.cat(weights, dim=1))
        for (kind, layer), weights in sorted(heads.items(), key=lambda item: item[0])
    )
