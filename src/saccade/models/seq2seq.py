"""Sequence to sequence through one vector: Sutskever, Vinyals and Le, NIPS 2014; Cho et al., EMNLP 2014.

The decoder knows the source only through the last state of the encoder: the bottleneck that attention removed.
Departures: the first state of each decoder layer is predicted from that of its encoder layer by a linear map (Cho et
al.: tanh(V c)) instead of copied (Sutskever et al.); the output layer can be tied to the target embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.interface import Decoded, Memory, OutputProjection, Source, Step, VocabularySizes
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import Recurrent, recurrent_stack, reverse
from saccade.models.family import Costs, Family, RecurrentStackConfig
from saccade.ops.dropout import dropout
from saccade.ops.recurrent_cells import CellKind, RecurrentState


class Seq2SeqConfig(RecurrentStackConfig):
    """Settings of the encoder-decoder; the defaults are those of Sutskever et al. (section 3.4)."""

    cell: CellKind = "lstm"
    """Recurrent cell: lstm (Sutskever et al.) or gru (Cho et al.)."""
    reverse_source: bool = True
    """Reverse the source sequence (Sutskever et al., section 3.3)."""
    context: bool = False
    """Feed the last encoder state to the decoder at every step, not only at the start (Cho et al., section 2.2)."""


PRESETS = {
    "seq2seq-tiny": Seq2SeqConfig(width=256, embedding=256, layers=1, dropout=0.2, tie_output=True),
    "seq2seq-base": Seq2SeqConfig(),
    "seq2seq-gru": Seq2SeqConfig(layers=1, embedding=100, cell="gru", reverse_source=False, context=True),
}

MINIATURE = Seq2SeqConfig(width=16, embedding=16, layers=2)
"""The size that the contract tests use."""


class Seq2SeqState(NamedTuple):
    """The decoder state between steps."""

    layers: tuple[RecurrentState, ...]
    context: Tensor | None  # (N, D) the last state of the encoder, if it is an input of every step


class Bridge(nn.Module):
    """Predicts the first state of a decoder layer from the last state of its encoder layer."""

    def __init__(self, cell: CellKind, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.cell = nn.Linear(width, width) if cell == "lstm" else None

    def forward(self, last: RecurrentState) -> RecurrentState:
        """Return tanh(V c) as hidden state; the cell state is not bounded, so it gets no tanh."""
        hidden = torch.tanh(self.hidden(last.hidden))
        return RecurrentState(hidden, None if self.cell is None else self.cell(last.cell))


class Seq2Seq(nn.Module):
    """A recurrent encoder and a recurrent decoder that starts from the encoder's last state."""

    max_target_positions = None  # a recurrent decoder has no maximum length

    def __init__(self, config: Seq2SeqConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, embedding = config.width, config.embedding
        self.probability = config.dropout
        self.reverse_source = config.reverse_source
        self.context = config.context
        self.source_embedding, self.target_embedding = token_embeddings(sizes, embedding, config.dropout)
        first_inputs = embedding + width if config.context else embedding
        upper = [width] * (config.layers - 1)
        self.encoder = nn.ModuleList(Recurrent(config.cell, inputs, width) for inputs in (embedding, *upper))
        self.bridge = nn.ModuleList(Bridge(config.cell, width) for _ in range(config.layers))
        self.decoder = nn.ModuleList(Recurrent(config.cell, inputs, width) for inputs in (first_inputs, *upper))
        self.output = OutputLayer(width, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids; `extra` is the last state of every layer."""
        assert isinstance(source.values, Tensor)
        x = self.source_embedding(source.values)  # (B, S, E)
        if self.reverse_source:
            x = reverse(x, source.mask)
        x, lasts = recurrent_stack(self.encoder, x, source.mask, self.apply_dropout)  # (B, S, D)
        return Memory(x, source.mask, extra=lasts)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T), from the begin symbol on; each layer runs over all positions at once."""
        state = self.start(memory)
        x = self.target_embedding(prefix)  # (B, T, E)
        if state.context is not None:
            x = torch.cat([x, state.context[:, None].expand(-1, x.size(1), -1)], -1)  # (B, T, E + D)
        for layer, first in zip(self.decoder, state.layers, strict=True):
            x = self.apply_dropout(layer(x, None, first)[0])  # (B, T, D)
        return Decoded(x)

    def start(self, memory: Memory) -> Seq2SeqState:
        """Return the first state of every decoder layer, predicted from the last state of its encoder layer."""
        states = tuple(bridge(last) for bridge, last in zip(self.bridge, memory.extra, strict=True))
        return Seq2SeqState(states, memory.extra[-1].hidden if self.context else None)

    def step(self, token: Tensor, state: Seq2SeqState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,); a step does not read the memory."""
        x = self.target_embedding(token)  # (N, E)
        if state.context is not None:
            x = torch.cat([x, state.context], -1)  # (N, E + D)
        states: list[RecurrentState] = []
        for layer, past in zip(self.decoder, state.layers, strict=True):
            assert isinstance(layer, Recurrent)
            states.append(layer.step(x, past))
            x = self.apply_dropout(states[-1].hidden)  # (N, D)
        return Step(x, Seq2SeqState(tuple(states), state.context))

    def apply_dropout(self, x: Tensor) -> Tensor:
        """Apply dropout, in training."""
        return dropout(x, self.probability, self.training)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (…, V) of outputs (…, D)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)


FAMILY = Family(
    "Sutskever et al. 2014; Cho et al. 2014",
    Seq2Seq,
    Seq2SeqConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n d^2)", "O(n)", "O(n)"),
    recipe={"training": {"learning_rate": 3e-3, "warmup_steps": 400}},
    variants=(
        {"cell": "gru", "reverse_source": False, "context": True},
        {"layers": 1, "tie_output": True},
    ),
    attention=frozenset(),
)
