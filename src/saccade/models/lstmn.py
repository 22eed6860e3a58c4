"""The LSTM memory-network: Cheng, Dong and Lapata, Long Short-Term Memory-Networks for Machine Reading, EMNLP 2016.

An LSTM with tapes instead of one memory cell: the hidden tape h_1 … h_t and the memory tape c_1 … c_t. At position t it
attends to all earlier positions, and the weighted sums h~_t, c~_t replace the previous state (section 3.2, eqs. 4-9):

    a_i = v·tanh(W_h h_i + W_x x_t + W_r h~_{t-1}),  s = softmax(a),  [h~_t; c~_t] = Σ_{i<t} s_i [h_i; c_i]
    i, f, o, ĉ = σ, σ, σ, tanh of (W [h~_t; x_t])
    c_t = f∘c~_t + i∘ĉ,  h_t = o∘tanh(c_t)

Two sequences (section 4): the decoder also attends to the hidden tape γ and the memory tape α of the source, with the
same score function and separate weights, which gives [γ~_t; α~_t]. The attention fusion decides how these are used:

    shallow    as in any encoder-decoder (Bahdanau et al. 2015): h~_t is in the query, γ~_t is an input of the gates
    deep       γ~_{t-1} is in the query, and a gate r adds the source memory to the target memory:
               r = σ(W [γ~_t; x_t]),  c_t = r∘α~_t + f∘c~_t + i∘ĉ

Departures: the paper's task with two sequences is classification, so it defines neither the first state nor the output
of a decoder. Here the encoder starts from zeros, the decoder from the last state of the encoder; the output is
tanh(W [h_t; γ~_t]) (Luong et al. 2015, eq. 5) for both fusions; the gates have biases. The paper gives no equation for
the query of shallow fusion; h~_t is our choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Attention, Decoded, Memory, OutputProjection, PerSentence, Source, Step, VocabularySizes
from saccade.layers.attention import additive_scores, group_by_sentence, weighted_sum
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import last
from saccade.models.family import Costs, Family, ModelConfig, inverse_sqrt_training
from saccade.ops.attention_reference import masked_softmax
from saccade.ops.dropout import dropout

Fusion = Literal["shallow", "deep"]


class LstmnConfig(ModelConfig):
    """Settings of the LSTM memory-network; the defaults are the paper's largest model with two sequences."""

    width: int = Field(450, ge=2)
    """Hidden size of states, memories and attention network."""
    embedding: int = Field(300, ge=1)
    """Embedding size, and width of the output layer's input."""
    fusion: Fusion = "deep"
    """Attention fusion: shallow (source context enters the gates), or deep (also the memory) (section 4)."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout of the embeddings and of the output layer's input."""
    tie_output: bool = True
    """Tie output layer and target embedding."""


PRESETS = {
    "lstmn-tiny": LstmnConfig(width=256, embedding=256, dropout=0.3),
    # Section 5.3: the largest of the models that read two sentences, with embeddings of width 300.
    "lstmn-base": LstmnConfig(),
}

MINIATURE = LstmnConfig(width=16, embedding=12, dropout=0.0)
"""The size that the contract tests use."""


class Tape(NamedTuple):
    """The hidden tape and the memory tape of a sequence so far."""

    keys: Tensor  # (N, t, D), W_h h
    values: Tensor  # (N, t, 2D), [h; c]
    recalled: Tensor  # (N, 2D), [h~; c~] of the last position; on an empty tape, the initial state


class SourceTape(NamedTuple):
    """The tapes of the source, projected for the decoder."""

    keys: Tensor  # (B, S, D)
    values: Tensor  # (B, S, 2D), [γ; α]


class DecoderState(NamedTuple):
    """The decoder state between steps."""

    tape: Tape  # of the target so far
    context: Tensor  # (N, D), γ~ of the last position
    source: PerSentence[SourceTape]


class Inputs(NamedTuple):
    """The projections of the decoder input, of one position or of all positions at once."""

    query: Tensor  # (..., D), for self-attention
    gates: Tensor  # (..., 4D)
    source_query: Tensor  # (..., D), for cross-attention
    transfer: Tensor  # (..., D), for the gate r; (..., 0) with shallow fusion


class StepWeights(NamedTuple):
    """The attention weights of one decoder position."""

    own: Tensor  # (N, t), to the earlier target positions
    source: Tensor  # (N, S)


class AdditiveScore(nn.Module):
    """v·tanh(W_h h + W_x x + W_r h~): the additive score of eq. 4, without biases."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)
        self.input = nn.Linear(inputs, width, bias=False)
        self.recalled = nn.Linear(width, width, bias=False)
        self.vector = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.vector, -(width**-0.5), width**-0.5)

    def forward(self, query: Tensor, recalled: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Return attention weights (..., W, t) for projected input and h~ (..., W, D), keys (..., t, D).

        `mask` is True at visible positions.
        """
        return masked_softmax(additive_scores(query + self.recalled(recalled), keys, self.vector), mask)


class Reader(nn.Module):
    """The LSTM memory-network over one sequence (section 3.2)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.score = AdditiveScore(inputs, width)
        self.input_gates = nn.Linear(inputs, 4 * width)
        self.recalled_gates = nn.Linear(width, 4 * width, bias=False)

    def start(self, state: Tensor) -> Tape:
        """Return the empty tape; the initial state (N, 2D) serves as [h~; c~] of the first position."""
        return Tape(state.new_empty(len(state), 0, self.width), state.new_empty(len(state), 0, 2 * self.width), state)

    def recall(self, query: Tensor, tape: Tape, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return [h~; c~] (N, 2D) and weights (N, t) of self-attention (eqs. 4-6) for the projected input (N, D).

        `mask` is True at visible positions.
        """
        if tape.keys.size(1) == 0:
            return tape.recalled, query[:, :0]
        previous = tape.recalled[:, : self.width]  # (N, D), h~_{t-1}
        weights = self.score(query[:, None], previous[:, None], tape.keys, mask)  # (N, 1, t)
        return weighted_sum(weights, tape.values).squeeze(1), weights.squeeze(1)

    def append(self, gates: Tensor, recalled: Tensor, tape: Tape, added: Tensor | None = None) -> Tape:
        """Append a position to the tape (eqs. 7-9).

        gates (N, 4D) have all inputs except h~; `added` (N, D) is added to the memory.
        """
        hidden, cell = recalled.chunk(2, -1)
        gates = torch.addmm(gates, hidden, self.recalled_gates.weight.T)
        input_gate, forget_gate, output_gate, new = gates.chunk(4, -1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(new)
        cell = cell if added is None else cell + added
        hidden = torch.sigmoid(output_gate) * torch.tanh(cell)  # (N, D)
        keys = torch.cat([tape.keys, self.score.key(hidden)[:, None]], 1)
        values = torch.cat([tape.values, torch.cat([hidden, cell], -1)[:, None]], 1)
        return Tape(keys, values, recalled)


class Writer(nn.Module):
    """The decoder: a reader of the target that also attends to the source (section 4)."""

    def __init__(self, inputs: int, width: int, fusion: Fusion) -> None:
        super().__init__()
        self.deep = fusion == "deep"
        self.reader = Reader(inputs, width)
        self.score = AdditiveScore(inputs, width)
        # The map from γ~ to the gate r (deep) or to all gates (shallow).
        self.context_projection = nn.Linear(width, width if self.deep else 4 * width, bias=False)
        self.input_transfer = nn.Linear(inputs, width) if self.deep else None

    def project(self, x: Tensor) -> Inputs:
        """Project the decoder input x (..., inputs)."""
        reader = self.reader
        transfer = x[..., :0] if self.input_transfer is None else self.input_transfer(x)
        return Inputs(reader.score.input(x), reader.input_gates(x), self.score.input(x), transfer)

    def start(self, memory: Memory) -> DecoderState:
        """Return an empty tape, with the last state of the source as initial state, and the projected source tapes."""
        values = torch.cat([memory.states, memory.extra], -1)  # (B, S, 2D)
        source = SourceTape(self.score.key(memory.states), values)
        state = last(values, memory.mask)  # (B, 2D)
        return DecoderState(self.reader.start(state), torch.zeros_like(memory.states[:, 0]), PerSentence(source))

    def forward(self, inputs: Inputs, state: DecoderState, mask: Tensor) -> tuple[DecoderState, StepWeights]:
        """Compute one position of N = B·W hypotheses; mask (B, S), True = real position."""
        recalled, own = self.reader.recall(inputs.query, state.tape)  # (N, 2D), (N, t)
        hidden = state.context if self.deep else recalled[:, : self.reader.width]  # (N, D), γ~_{t-1} or h~_t
        source = state.source.value
        query = group_by_sentence(inputs.source_query, len(mask))  # (B, W, D)
        weights = self.score(query, group_by_sentence(hidden, len(mask)), source.keys, mask[:, None])  # (B, W, S)
        context, memory = weighted_sum(weights, source.values).flatten(0, 1).chunk(2, -1)  # (N, D) each, γ~ and α~
        if self.deep:
            transfer = torch.sigmoid(inputs.transfer + self.context_projection(context)) * memory  # (N, D), r∘α~
            tape = self.reader.append(inputs.gates, recalled, state.tape, transfer)
        else:
            tape = self.reader.append(inputs.gates + self.context_projection(context), recalled, state.tape)
        return DecoderState(tape, context, state.source), StepWeights(own, weights.flatten(0, 1))


class Lstmn(nn.Module):
    """An encoder-decoder of two LSTM memory-networks."""

    max_target_positions = None  # a tape has no maximum length

    def __init__(self, config: LstmnConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, embedding = config.width, config.embedding
        self.dropout = config.dropout
        self.source_embedding, self.target_embedding = token_embeddings(sizes, embedding, config.dropout)
        self.encoder = Reader(embedding, width)
        self.decoder = Writer(embedding, width, config.fusion)
        self.combine = nn.Linear(2 * width, embedding)
        self.output = OutputLayer(embedding, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids; `states` and `extra` are the hidden and memory tape, (B, S, D) each."""
        assert isinstance(source.values, Tensor)
        x = self.source_embedding(source.values)  # (B, S, E)
        tape = self.encoder.start(x.new_zeros(len(x), 2 * self.encoder.width))
        # Unbound once: one slice per position would cost one full-size gradient per position.
        queries, gates = self.encoder.score.input(x).unbind(1), self.encoder.input_gates(x).unbind(1)
        steps: list[Tensor] = []
        for position, (query, gate) in enumerate(zip(queries, gates, strict=True)):
            # Padding comes after the real positions, which thus never attend to it; the mask is for padding positions.
            recalled, weights = self.encoder.recall(query, tape, source.mask[:, None, :position])
            tape = self.encoder.append(gate, recalled, tape)
            steps.append(weights)
        hidden, cell = tape.values.chunk(2, -1)  # (B, S, D) each
        records = (Attention("encoder-self", 0, causal_weights(steps)),) if record else ()
        return Memory(hidden, source.mask, cell, records)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T), from the begin symbol on."""
        projected = self.decoder.project(self.target_embedding(prefix))
        state = self.decoder.start(memory)
        contexts: list[Tensor] = []
        steps: list[StepWeights] = []
        for parts in zip(*(part.unbind(1) for part in projected), strict=True):
            state, weights = self.decoder(Inputs(*parts), state, memory.mask)
            contexts.append(state.context)
            steps.append(weights)
        hidden = state.tape.values.chunk(2, -1)[0]  # (B, T, D)
        outputs = self.combine_states(hidden, torch.stack(contexts, 1))  # (B, T, E)
        if not record:
            return Decoded(outputs)
        cross = torch.stack([weights.source for weights in steps], 1)[:, None]  # (B, 1, T, S)
        own = causal_weights([weights.own for weights in steps])  # (B, 1, T, T)
        return Decoded(outputs, (Attention("decoder-self", 0, own), Attention("cross", 0, cross)))

    def start(self, memory: Memory) -> DecoderState:
        """Return the decoder state before the first token."""
        return self.decoder.start(memory)

    def step(self, token: Tensor, state: DecoderState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position of N hypotheses: token (N,)."""
        inputs = self.decoder.project(self.target_embedding(token))
        state, weights = self.decoder(inputs, state, memory.mask)
        output = self.combine_states(state.tape.values[:, -1].chunk(2, -1)[0], state.context)  # (N, E)
        if not record:
            return Step(output, state)
        own, cross = with_own_position(weights.own)[:, None, None], weights.source[:, None, None]  # (N, 1, 1, ...)
        return Step(output, state, (Attention("decoder-self", 0, own), Attention("cross", 0, cross)))

    def combine_states(self, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the output layer's input tanh(W [h; γ~]) (..., E), from h and γ~ (..., D)."""
        states = dropout(torch.cat([hidden, context], -1), self.dropout, self.training)
        return torch.tanh(self.combine(states))

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V) of outputs (..., E)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)


def with_own_position(weights: Tensor) -> Tensor:
    """Append the weight of the own position to attention weights (N, t) to the earlier positions: (N, t + 1).

    It is 0, but 1 at the first position, which has no earlier ones: every recorded row sums to 1.
    """
    return F.pad(weights, (0, 1), value=0.0 if weights.size(1) else 1.0)


def causal_weights(steps: Sequence[Tensor]) -> Tensor:
    """Return the attention weights (N, t) of positions t = 0, 1, ... as one lower triangle (N, 1, T, T)."""
    rows = [with_own_position(weights) for weights in steps]
    return torch.stack([F.pad(row, (0, len(rows) - row.size(1))) for row in rows], 1)[:, None]


FAMILY = Family(
    "Cheng et al. 2016",
    Lstmn,
    LstmnConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n^2 d + n d^2)", "O(n)", "O(1)"),
    recipe={
        "training": inverse_sqrt_training(1e-3, clip_norm=1.0),
    },
    variants=({"fusion": "shallow"}, {"tie_output": False}),
    attention=frozenset({"encoder-self", "decoder-self", "cross"}),
)
