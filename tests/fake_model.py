"""A model without layers, for tests of searches: probabilities are a fixed function of the source and the prefix.

A state that is used with the memory of another source is an error, which a real model would not notice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.interface import Attention, Decoded, Memory, OutputProjection, PerSentence, Source, Step, select
from saccade.symbols import Symbols

SYMBOLS = Symbols()
LONGEST = 64  # entries of the position table


class FakeState(NamedTuple):
    """Decoder state of the fake model."""

    prefix: Tensor  # (N, t) the tokens so far
    signature: Tensor  # (N, D) of the source that the state belongs to
    memory_signature: PerSentence[Tensor]  # (B, D)


class FakeModel:
    """An encoder and decoder with the interface of a model."""

    max_target_positions: int | None = None

    def __init__(
        self,
        vocabulary: int = 7,
        *,
        width: int = 8,
        seed: int = 0,
        sharpness: float = 1.0,
        end_bias: float = 0.0,
        attends: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def table(rows: int) -> Tensor:
            return torch.randn(rows, width, generator=generator, dtype=torch.float64)

        self.source_table = table(max(vocabulary, 100))
        self.target_table = table(vocabulary)
        self.position_table = table(LONGEST)
        self.output_table = table(vocabulary) * sharpness
        self.output_bias = torch.zeros(vocabulary, dtype=torch.float64)
        self.output_bias[SYMBOLS.end] = end_bias
        self.attends = attends
        self.dtype = dtype
        self.steps: list[int] = []  # number of rows of each step

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        assert isinstance(source.values, Tensor)
        states = self.source_table[source.values] * self.position_table[: source.values.size(1)]  # (B, S, D)
        return Memory(states, source.mask)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        embedded = self.target_table[prefix] * self.position_table[: prefix.size(1)]  # (B, T, D)
        outputs = (2 * embedded.cumsum(dim=1) + signature(memory)[:, None]).sin()
        return Decoded(outputs, self.attention(outputs, memory) if record else ())

    def start(self, memory: Memory) -> FakeState:
        empty = memory.mask.new_empty(memory.mask.size(0), 0, dtype=torch.long)
        return FakeState(empty, signature(memory), PerSentence(signature(memory)))

    def step(self, token: Tensor, state: FakeState, memory: Memory, *, record: bool = False) -> Step:
        assert torch.equal(state.memory_signature.value, signature(memory)), "these keys belong to another memory"
        rows = torch.arange(len(memory.mask)).repeat_interleave(len(token) // max(1, len(memory.mask)))
        memory = select(memory, rows)
        assert torch.equal(state.signature, signature(memory)), "this state belongs to another source row"
        prefix = torch.cat([state.prefix, token[:, None]], dim=1)
        assert (prefix[:, 0] == SYMBOLS.begin).all(), "a target starts with begin"
        self.steps.append(len(token))
        output = self.decode(prefix, memory).outputs[:, -1:]  # (N, 1, D)
        attention = self.attention(output, memory) if record else ()
        return Step(output.squeeze(1), FakeState(prefix, state.signature, state.memory_signature), attention)

    def logits(self, outputs: Tensor) -> Tensor:
        return (outputs @ self.output_table.T + self.output_bias).to(self.dtype)

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        return OutputProjection(outputs, self.output_table, self.output_bias)

    def attention(self, outputs: Tensor, memory: Memory) -> tuple[Attention, ...]:
        """Two cross-attention layers of two heads over the source, the last one first, and a self-attention."""
        itself = Attention("decoder-self", 2, torch.ones(*outputs.shape[:2], 1, 1).transpose(1, 2))
        if not self.attends:
            return (itself,)
        energies = outputs @ memory.states.transpose(1, 2)  # (B, T, S)
        heads = torch.stack([energies, -3 * energies], dim=1)  # (B, 2, T, S)
        weights = heads.masked_fill(~memory.mask[:, None, None], -math.inf).softmax(dim=-1)
        return (Attention("cross", 1, weights), Attention("cross", 0, weights.flip(1) ** 2), itself)


def signature(memory: Memory) -> Tensor:
    """A vector (B, D) that differs between sources and does not depend on padding."""
    return memory.states.masked_fill(~memory.mask[:, :, None], 0.0).sum(dim=1)


def fake_source(rows: Sequence[Sequence[int]]) -> Source:
    """Ragged source ids as a padded batch."""
    longest = max(map(len, rows), default=0)
    values = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, ids in enumerate(rows):
        values[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        mask[row, : len(ids)] = True
    return Source(values, mask)


def fake_memory(model: FakeModel, rows: Sequence[Sequence[int]]) -> Memory:
    """The model's memory of ragged source ids."""
    return model.encode(fake_source(rows))


def empty_memory(rows: int) -> Memory:
    """The memory of a language model: no source positions."""
    return Memory(torch.zeros(rows, 0, 8, dtype=torch.float64), torch.zeros(rows, 0, dtype=torch.bool))
