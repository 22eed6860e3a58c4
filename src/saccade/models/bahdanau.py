"""RNNsearch: Bahdanau et al., Neural Machine Translation by Jointly Learning to Align and Translate, ICLR 2015.

Equation numbers are the paper's; A.n are sections of its appendix. Departures: the GRU is the library's (see
layers/recurrent.py), the output layer can be tied to the target embedding, dropout is on embeddings and readout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from saccade.interface import Attention, Decoded, Memory, OutputProjection, PerSentence, Source, Step, VocabularySizes
from saccade.layers.additive_attention import AdditiveAttention
from saccade.layers.attention import split_hypotheses
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import Bidirectional, TwoInputRecurrent
from saccade.models.family import Costs, Family, ModelConfig
from saccade.ops.dropout import dropout
from saccade.ops.recurrent_cells import CellKind, RecurrentState


class BahdanauConfig(ModelConfig):
    """Settings of RNNsearch; the defaults are the paper's (section 4.2, appendix A.2)."""

    width: int = Field(1000, ge=2)
    """Hidden size of each encoder direction and of the decoder, n."""
    embedding: int = Field(620, ge=1)
    """Embedding size, m."""
    alignment: int = Field(1000, ge=1)
    """Hidden size of the attention network, n'."""
    readout: int = Field(500, ge=1)
    """Size of the maxout layer before the output, l."""
    cell: CellKind = "gru"
    """Recurrent cell: gru, as in the paper, or lstm."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the embeddings and of the maxout layer."""
    tie_output: bool = False
    """Tie output layer and target embedding; a linear projection joins them if their widths differ."""


PRESETS = {
    "bahdanau-tiny": BahdanauConfig(width=256, embedding=256, alignment=256, readout=256, dropout=0.3, tie_output=True),
    "bahdanau-base": BahdanauConfig(),
}

MINIATURE = BahdanauConfig(width=16, embedding=16, alignment=16, readout=16)
"""The size that the contract tests use."""


class BahdanauState(NamedTuple):
    """The decoder state between steps."""

    recurrent: RecurrentState  # s_{i-1}
    keys: PerSentence[Tensor]  # (B, S, n') U_a h_j, projected once


class Bahdanau(nn.Module):
    """RNNsearch: a bidirectional encoder and a decoder that attends to it before every token."""

    max_target_positions = None  # a recurrent decoder has no maximum length

    def __init__(self, config: BahdanauConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, embedding = config.width, config.embedding
        self.probability = config.dropout
        self.source_embedding, self.target_embedding = token_embeddings(sizes, embedding, config.dropout)
        self.encoder = Bidirectional(config.cell, embedding, width)
        self.first_state = nn.Linear(width, width)  # W_s
        self.attention = AdditiveAttention(width, 2 * width, config.alignment)  # W_a, U_a, v_a
        self.decoder = TwoInputRecurrent(config.cell, embedding, 2 * width, width)
        self.readout = nn.Linear(width + embedding + 2 * width, 2 * config.readout)  # [U_o V_o C_o]
        self.output = OutputLayer(config.readout, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids; the annotations h_j are the states of both directions (section 3.2)."""
        assert isinstance(source.values, Tensor)
        annotations, _, beginning = self.encoder.of_tokens(self.source_embedding, source.values, source.mask)
        return Memory(annotations, source.mask, extra=beginning.hidden)  # (B, S, 2n), (B, n)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T), from the begin symbol on: states step by step, then the readout of all positions.

        e_ij = v_a tanh(W_a s_{i-1} + U_a h_j); α_i = softmax(e_i); c_i = Σ_j α_ij h_j; s_i = f(s_{i-1}, y_{i-1}, c_i).
        """
        embedded = self.target_embedding(prefix)  # (B, T, m)
        projected = self.decoder.project(embedded)  # (B, T, G·n)
        state, keys = self.start(memory)
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        for inputs in projected.unbind(1):  # one slice per position would cost one full-size gradient per position
            attended = self.attention(state.hidden, keys.value, memory)  # (B, 2n), (B, 1, S)
            state = self.decoder(inputs, attended.context, state)
            states.append(state.hidden)
            contexts.append(attended.context)
            weights.append(attended.weights)
        outputs = self.read_out(torch.stack(states, 1), embedded, torch.stack(contexts, 1))  # (B, T, l)
        return Decoded(outputs, (Attention("cross", 0, torch.stack(weights, 2)),) if record else ())

    def start(self, memory: Memory) -> BahdanauState:
        """Return the initial state: s_0 = tanh(W_s ←h_1), ←h_1 from the backward encoder (appendix A.2.2)."""
        hidden = torch.tanh(self.first_state(memory.extra))
        zeros = self.decoder.empty(hidden)
        return BahdanauState(zeros._replace(hidden=hidden), PerSentence(self.attention.project(memory)))

    def step(self, token: Tensor, state: BahdanauState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,), N = B·W."""
        embedded = self.target_embedding(token)  # (N, m)
        context, weights = self.attention(state.recurrent.hidden, state.keys.value, memory)  # (N, 2n), (B, W, S)
        recurrent = self.decoder(self.decoder.project(embedded), context, state.recurrent)  # s_i (N, n)
        output = self.read_out(recurrent.hidden, embedded, context)  # t_i (N, l)
        records = (Attention("cross", 0, split_hypotheses(weights[:, None])),) if record else ()
        return Step(output, BahdanauState(recurrent, state.keys), records)

    def read_out(self, states: Tensor, embedded: Tensor, contexts: Tensor) -> Tensor:
        """Return t_i, pairwise maxima of U_o s_i + V_o E y_{i-1} + C_o c_i (appendix A.2.2, s_i as in eq. 4)."""
        pairs = self.readout(torch.cat([states, embedded, contexts], -1)).unflatten(-1, (-1, 2))  # (…, l, 2)
        return dropout(pairs.amax(-1), self.probability, self.training)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits W_o t_i (…, V) of t_i (…, l)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)


FAMILY = Family(
    "Bahdanau et al. 2015",
    Bahdanau,
    BahdanauConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n d^2)", "O(n)", "O(n)"),
    recipe={"training": {"learning_rate": 2e-3, "warmup_steps": 400}},
    variants=({"cell": "lstm"}, {"tie_output": True}),
)
