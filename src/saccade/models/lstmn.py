"""The LSTM memory-network: Cheng, Dong and Lapata, Long Short-Term Memory-Networks for Machine Reading, EMNLP 2016.

An LSTM whose memory cell is a tape. At place t the reader attends to all places before it, and what it recalls stands
where an LSTM has its last state (section 3.2, eqs. 4-9):

    a_i = v·tanh(W_h h_i + W_x x_t + W_r h~_{t-1}),  s = softmax(a),  [h~_t; c~_t] = Σ_{i<t} s_i [h_i; c_i]
    i, f, o, ĉ = σ, σ, σ, tanh of (W [h~_t; x_t])
    c_t = f∘c~_t + i∘ĉ,  h_t = o∘tanh(c_t)

Two sequences (section 4): the decoder also attends to the hidden tape γ and the memory tape α of the source, by the
same score with weights of its own, which gives [γ~_t; α~_t]. What it does with them is `fusion`:

    shallow    as in any encoder-decoder (Bahdanau et al. 2015): h~_t asks, and γ~_t is one more input of the gates
    deep       γ~_{t-1} asks, and a gate r moves the source's memory into the target's:
               r = σ(W [γ~_t; x_t]),  c_t = r∘α~_t + f∘c~_t + i∘ĉ

What we add: the paper's task with two sequences is a classification, and it does not say how a decoder begins or
writes. Here the encoder's last state is what the decoder recalls before its tape has a place, and the encoder begins
with zeros; the output is tanh(W [h_t; γ~_t]) (Luong et al. 2015, eq. 5), for both fusions; the gates have biases. The
paper describes shallow fusion in words only: that h~_t asks, which the gates take for the last state, is our reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Attention, Decoded, Memory, OfMemory, Product, Source, Step, VocabularySizes
from saccade.layers.attention import additive_scores, masked_softmax, side_by_side, weighted_sum
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import last
from saccade.models.family import Costs, Family, ModelConfig
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
    """What a reader has read; hidden states and memories stand side by side."""

    keys: Tensor  # (N, t, D), W_h h
    values: Tensor  # (N, t, 2D), [h; c]
    recalled: Tensor  # (N, 2D), [h~; c~] of the last place; before the first place, the state to begin with


class SourceTape(NamedTuple):
    """The tape of the source as the decoder asks it."""

    keys: Tensor  # (B, S, D)
    values: Tensor  # (B, S, 2D), [γ; α]


class DecoderState(NamedTuple):
    """What the decoder keeps between steps."""

    tape: Tape  # of the target so far
    looked: Tensor  # (N, D), γ~ of the last place
    source: OfMemory[SourceTape]


class Inputs(NamedTuple):
    """All that the input of one place, or of all places, adds anywhere: one product each, before the recurrence."""

    query: Tensor  # (..., D), of the attention to the own tape
    gates: Tensor  # (..., 4D)
    source_query: Tensor  # (..., D), of the attention to the source
    transfer: Tensor  # (..., D), of the gate r; shallow fusion has none, and it is empty


class Look(NamedTuple):
    """Where one place looked."""

    own: Tensor  # (N, t), the places of the tape before it
    source: Tensor  # (N, S)


class AdditiveScore(nn.Module):
    """v·tanh(key of h + share of x + share of what was recalled): eq. 4, without biases as there."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)
        self.input = nn.Linear(inputs, width, bias=False)
        self.recalled = nn.Linear(width, width, bias=False)
        self.vector = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.vector, -(width**-0.5), width**-0.5)

    def forward(self, query: Tensor, recalled: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Shares of the input and what was recalled (..., W, D), keys (..., t, D) to weights (..., W, t)."""
        return masked_softmax(additive_scores(query + self.recalled(recalled), keys, self.vector), mask)


class Reader(nn.Module):
    """An LSTM whose memory is a tape (section 3.2)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.score = AdditiveScore(inputs, width)
        self.input_gates = nn.Linear(inputs, 4 * width)
        self.recalled_gates = nn.Linear(width, 4 * width, bias=False)

    def start(self, state: Tensor) -> Tape:
        """A tape without a place; state (N, 2D) is what the first place recalls."""
        return Tape(state.new_empty(len(state), 0, self.width), state.new_empty(len(state), 0, 2 * self.width), state)

    def recall(self, query: Tensor, tape: Tape, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The share of the input in the query (N, D) to [h~; c~] (N, 2D) and the weights (N, t): eqs. 4-6."""
        if tape.keys.size(1) == 0:
            return tape.recalled, query[:, :0]
        before = tape.recalled[:, : self.width]  # (N, D), h~_{t-1}
        weights = self.score(query[:, None], before[:, None], tape.keys, mask)  # (N, 1, t)
        return weighted_sum(weights, tape.values).squeeze(1), weights.squeeze(1)

    def write(self, gates: Tensor, recalled: Tensor, tape: Tape, added: Tensor | None = None) -> Tape:
        """The tape with one more place: eqs. 7-9.

        gates (N, 4D) lack the share of h~ only; `added` (N, D) goes into the memory.
        """
        hidden, cell = recalled.chunk(2, -1)
        write, keep, read, new = torch.addmm(gates, hidden, self.recalled_gates.weight.T).chunk(4, -1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(new)
        cell = cell if added is None else cell + added
        hidden = torch.sigmoid(read) * torch.tanh(cell)  # (N, D)
        keys = torch.cat([tape.keys, self.score.key(hidden)[:, None]], 1)
        values = torch.cat([tape.values, torch.cat([hidden, cell], -1)[:, None]], 1)
        return Tape(keys, values, recalled)


class Writer(nn.Module):
    """A reader of the target that attends to the source's tape as well (section 4)."""

    def __init__(self, inputs: int, width: int, fusion: Fusion) -> None:
        super().__init__()
        self.deep = fusion == "deep"
        self.reader = Reader(inputs, width)
        self.score = AdditiveScore(inputs, width)
        self.looked = nn.Linear(width, width if self.deep else 4 * width, bias=False)  # γ~ to the gate r, or to all
        self.input_transfer = nn.Linear(inputs, width) if self.deep else None

    def project(self, x: Tensor) -> Inputs:
        """x (..., inputs)."""
        reader = self.reader
        transfer = x[..., :0] if self.input_transfer is None else self.input_transfer(x)
        return Inputs(reader.score.input(x), reader.input_gates(x), self.score.input(x), transfer)

    def start(self, memory: Memory) -> DecoderState:
        """An empty tape, the source's last state to begin with, and the source's tape with its keys."""
        values = torch.cat([memory.states, memory.summary], -1)  # (B, S, 2D)
        source = SourceTape(self.score.key(memory.states), values)
        state = last(values, memory.mask)  # (B, 2D)
        return DecoderState(self.reader.start(state), torch.zeros_like(memory.states[:, 0]), OfMemory(source))

    def forward(self, inputs: Inputs, state: DecoderState, mask: Tensor) -> tuple[DecoderState, Look]:
        """One place of N = B·W targets; mask (B, S)."""
        recalled, own = self.reader.recall(inputs.query, state.tape)  # (N, 2D), (N, t)
        asking = state.looked if self.deep else recalled[:, : self.reader.width]  # (N, D)
        rows = len(mask)
        source = state.source.value
        query, asking = side_by_side(inputs.source_query, rows), side_by_side(asking, rows)  # (B, W, D)
        weights = self.score(query, asking, source.keys, mask[:, None])  # (B, W, S)
        looked, memory = weighted_sum(weights, source.values).flatten(0, 1).chunk(2, -1)  # (N, D) each, γ~ and α~
        if self.deep:
            transfer = torch.sigmoid(inputs.transfer + self.looked(looked)) * memory  # (N, D), r∘α~
            tape = self.reader.write(inputs.gates, recalled, state.tape, transfer)
        else:
            tape = self.reader.write(inputs.gates + self.looked(looked), recalled, state.tape)
        return DecoderState(tape, looked, state.source), Look(own, weights.flatten(0, 1))


class Lstmn(nn.Module):
    """Two readers: one makes the source's tape, the other writes while it attends to that and to its own."""

    longest = None  # a tape has no end

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
        """source.values (B, S) ids; the states are the hidden tape, the summary is the memory tape."""
        assert isinstance(source.values, Tensor)
        x = self.source_embedding(source.values)  # (B, S, E)
        tape = self.encoder.start(x.new_zeros(len(x), 2 * self.encoder.width))
        # Taken apart once: a slice at every place would cost a whole tensor of zeros in the gradient of each.
        queries, gates = self.encoder.score.input(x).unbind(1), self.encoder.input_gates(x).unbind(1)
        looks: list[Tensor] = []
        for place, (query, gate) in enumerate(zip(queries, gates, strict=True)):
            # Real places come first, so no real place can see padding; the mask keeps padded places from it too.
            recalled, weights = self.encoder.recall(query, tape, source.mask[:, None, :place])
            tape = self.encoder.write(gate, recalled, tape)
            looks.append(weights)
        hidden, cell = tape.values.chunk(2, -1)  # (B, S, D) each
        records = (Attention("encoder-self", 0, triangle(looks)),) if record else ()
        return Memory(hidden, source.mask, cell, records)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """prefix (B, T), begin first."""
        projected = self.decoder.project(self.target_embedding(prefix))
        state = self.decoder.start(memory)
        contexts: list[Tensor] = []
        looks: list[Look] = []
        for parts in zip(*(part.unbind(1) for part in projected), strict=True):
            state, look = self.decoder(Inputs(*parts), state, memory.mask)
            contexts.append(state.looked)
            looks.append(look)
        hidden = state.tape.values.chunk(2, -1)[0]  # (B, T, D)
        outputs = self.combined(hidden, torch.stack(contexts, 1))  # (B, T, E)
        if not record:
            return Decoded(outputs)
        cross = torch.stack([look.source for look in looks], 1)[:, None]  # (B, 1, T, S)
        own = triangle([look.own for look in looks])  # (B, 1, T, T)
        return Decoded(outputs, (Attention("decoder-self", 0, own), Attention("cross", 0, cross)))

    def start(self, memory: Memory) -> DecoderState:
        """An empty tape, and the source's tape with its keys."""
        return self.decoder.start(memory)

    def step(self, token: Tensor, state: DecoderState, memory: Memory, *, record: bool = False) -> Step:
        """token (N,)."""
        inputs = self.decoder.project(self.target_embedding(token))
        state, look = self.decoder(inputs, state, memory.mask)
        output = self.combined(state.tape.values[:, -1].chunk(2, -1)[0], state.looked)  # (N, E)
        if not record:
            return Step(output, state)
        own, cross = up_to_its_own(look.own)[:, None, None], look.source[:, None, None]  # (N, 1, 1, ...)
        return Step(output, state, (Attention("decoder-self", 0, own), Attention("cross", 0, cross)))

    def combined(self, hidden: Tensor, looked: Tensor) -> Tensor:
        """h and γ~ (..., D) each to what the output layer takes (..., E)."""
        both = dropout(torch.cat([hidden, looked], -1), self.dropout, self.training)
        return torch.tanh(self.combine(both))

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., E) to (..., V)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_product(self, outputs: Tensor) -> Product:
        """The output layer up to its product."""
        return self.output.product(outputs)


def up_to_its_own(weights: Tensor) -> Tensor:
    """Weights (N, t) of the places before one, with its own place after them: (N, t + 1).

    No place looks at itself; but the first, which has nothing to look at, is recorded as if it did.
    """
    return F.pad(weights, (0, 1), value=0.0 if weights.size(1) else 1.0)


def triangle(looks: Sequence[Tensor]) -> Tensor:
    """The weights of every place (N, t), t = 0, 1, ..., as one record (N, 1, T, T)."""
    rows = [up_to_its_own(weights) for weights in looks]
    return torch.stack([F.pad(row, (0, len(rows) - row.size(1))) for row in rows], 1)[:, None]


FAMILY = Family(
    "Cheng et al. 2016",
    Lstmn,
    LstmnConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n^2 d + n d^2)", "O(n)", "O(1)"),
    recipe={
        "training": {
            "learning_rate": 1e-3,
            "schedule": "inverse-sqrt",
            "warmup_steps": 500,
            "clip_norm": 1.0,
            "label_smoothing": 0.1,
        }
    },
    variants=({"fusion": "shallow"}, {"tie_output": False}),
    attention=frozenset({"encoder-self", "decoder-self", "cross"}),
)
