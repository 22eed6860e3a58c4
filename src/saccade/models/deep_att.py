"""Deep-Att: Zhou et al., Deep Recurrent Models with Fast-Forward Connections for Neural Machine Translation, TACL 2016.

A recurrent layer is split in two: the projection f = W x of its input to the gates, and the recurrence
h_t = LSTM(f_t, h_{t-1}). A fast-forward connection passes f to the next layer together with h; in layer k:

    f^k_t = W^k [Half(f^{k-1}_t), Dr(h^{k-1}_t)],    h^k_t = LSTM^k(f^k_t, h^k_{t-1})

so that a path without nonlinearity or recurrence leads through all layers. Half is the first half, Dr is dropout.
Encoder layers alternate between the forward and the backward direction; the two columns start in opposite directions.

W^k is the input matrix of PyTorch's LSTM, which runs over all positions at once but does not return f. The half of f
that the next layer reads is computed again, by one product with the same rows of W^k.

Departures: f has a bias; a linear map projects f and h of the top layer to the embedding size, so that the output
layer can be tied to the target embedding; the decoder starts from zeros; Adam for all weights.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Attention, Decoded, Memory, OutputProjection, PerSentence, Source, Step, VocabularySizes
from saccade.layers.additive_attention import AdditiveAttention
from saccade.layers.attention import split_hypotheses
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import Recurrent, TwoInputRecurrent, reverse
from saccade.models.family import Costs, Family, ModelConfig, inverse_sqrt_training
from saccade.ops.dropout import dropout
from saccade.ops.recurrent_cells import RecurrentState
from saccade.ops.recurrent_layer import RecurrentWeights


class DeepAttConfig(ModelConfig):
    """Settings of Deep-Att; the defaults are the paper's size."""

    width: int = Field(512, ge=2)
    """Hidden size of each LSTM layer."""
    embedding: int = Field(256, ge=1)
    """Embedding size."""
    encoder_layers: int = Field(9, ge=1)
    """Layers of each column of the encoder."""
    columns: int = Field(2, ge=1, le=2)
    """Columns of the encoder: the first starts forward, the second backward."""
    decoder_layers: int = Field(7, ge=1)
    """Layers of the decoder."""
    memory: int = Field(1280, ge=1)
    """Width of the encoder output: the interface layer projects f and h of all columns to it."""
    attention: int = Field(512, ge=1)
    """Hidden size of the attention network."""
    fast_forward: bool = True
    """Use fast-forward connections: pass the first half of f to the next layer. Without them, a plain LSTM stack."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the embeddings and of h between layers, not of f."""
    tie_output: bool = True
    """Tie output layer and target embedding."""


PRESETS = {
    "deep-att-tiny": DeepAttConfig(
        width=256, embedding=256, encoder_layers=4, decoder_layers=3, memory=320, attention=256, dropout=0.3
    ),
    "deep-att-base": DeepAttConfig(),
}

MINIATURE = DeepAttConfig(
    width=16, embedding=16, encoder_layers=3, decoder_layers=3, memory=20, attention=16, dropout=0.0
)
"""The size that the contract tests use."""


class DeepAttState(NamedTuple):
    """The decoder state between steps."""

    layers: tuple[RecurrentState, ...]  # bottom layer first
    keys: PerSentence[Tensor]  # (B, S, a), projected once


class FastForward(nn.Module):
    """One unidirectional LSTM layer that also returns the first entries of f, the projection of its input."""

    def __init__(self, inputs: int, width: int, passed: int) -> None:
        super().__init__()
        self.passed = passed  # of the 4·width entries of f
        self.recurrent = Recurrent("lstm", inputs, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute all positions at once, from a zero state: x (B, T, inputs) to h (B, T, H)."""
        return self.recurrent(x)[0]  # type: ignore[no-any-return]

    def fast_forward_projection(self, x: Tensor) -> Tensor:
        """Return the first entries of f = W x + b: (…, inputs) to (…, passed)."""
        weight, _, bias, _ = RecurrentWeights.of(self.recurrent.layer)
        return F.linear(x, weight[: self.passed], bias[: self.passed])


def stack(layers: int, inputs: int, above: int, width: int, half: int, full: int) -> nn.ModuleList:
    """Return a stack whose bottom layer has `inputs` inputs, the others `above`; the top layer passes its full f on."""
    return nn.ModuleList(
        FastForward(above if layer else inputs, width, half if layer < layers - 1 else full) for layer in range(layers)
    )


class DeepAtt(nn.Module):
    """Deep stacks of LSTM layers with fast-forward connections, and attention at the bottom of the decoder."""

    max_target_positions = None  # a recurrent decoder has no maximum length

    def __init__(self, config: DeepAttConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, embedding = config.width, config.embedding
        self.probability = config.dropout
        self.source_embedding, self.target_embedding = token_embeddings(sizes, embedding, config.dropout)

        half = 2 * width if config.fast_forward else 0  # of f, which has four gates
        full = 2 * half
        above = half + width  # inputs of the layers above the bottom one
        self.columns = nn.ModuleList(
            stack(config.encoder_layers, embedding, above, width, half, full) for _ in range(config.columns)
        )
        self.interface = nn.Linear(config.columns * (full + width), config.memory, bias=False)  # W_p
        self.attention = AdditiveAttention(width, config.memory, config.attention)
        self.bottom = TwoInputRecurrent("lstm", embedding, config.memory, width)
        self.bottom_passed = half if config.decoder_layers > 1 else full
        self.decoder = stack(config.decoder_layers - 1, above, above, width, half, full)
        self.readout = nn.Linear(full + width, embedding)
        self.output = OutputLayer(embedding, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids; the memory is W_p [f, h] with f and h of the top layer of every column."""
        assert isinstance(source.values, Tensor)
        embedded = self.source_embedding(source.values)  # (B, S, E)
        tops = [
            self.run_column(cast("list[FastForward]", column), embedded, source.mask, backwards=number == 1)
            for number, column in enumerate(self.columns)
        ]
        return Memory(self.interface(torch.cat(tops, -1)), source.mask)  # (B, S, M)

    def run_column(self, layers: list[FastForward], x: Tensor, mask: Tensor, *, backwards: bool) -> Tensor:
        """Run a column on x (B, S, E): [f, h] of the top layer (B, S, 5H); the layers alternate between the directions.

        Padding comes after the real positions in both directions, and no last state is needed: no mask is necessary.
        """
        for layer in layers:
            hidden = layer(reverse(x, mask) if backwards else x)  # (B, S, H)
            hidden = reverse(hidden, mask) if backwards else hidden
            fast_forward = layer.fast_forward_projection(x)
            x = torch.cat([fast_forward, self.apply_dropout(hidden)], -1)  # (B, S, 3H), 5H at the top
            backwards = not backwards
        return x

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T), from the begin symbol on; the layers above the bottom one run on all positions."""
        projected = self.bottom.project(self.target_embedding(prefix.T))  # (T, B, 4H)
        state, keys = self.bottom.empty(memory.states), self.attention.project(memory)
        hiddens: list[Tensor] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        for inputs in projected.unbind(0):
            attended = self.attention(state.hidden, keys, memory)  # the query is h^1 of the previous position
            state = self.bottom(inputs, attended.context, state)
            hiddens.append(state.hidden)
            contexts.append(attended.context)
            weights.append(attended.weights)
        hidden = torch.stack(hiddens, 1)  # (B, T, H)
        fast_forward = self.bottom_fast_forward_projection(projected.transpose(0, 1), torch.stack(contexts, 1))
        for layer in self.upper_layers():
            x = torch.cat([fast_forward, self.apply_dropout(hidden)], -1)  # (B, T, 3H)
            fast_forward, hidden = layer.fast_forward_projection(x), layer(x)  # (B, T, 2H), 4H at the top; (B, T, H)
        records = (Attention("cross", 0, torch.stack(weights, 2)),) if record else ()  # (B, 1, T, S)
        return Decoded(self.read_out(fast_forward, hidden), records)

    def start(self, memory: Memory) -> DeepAttState:
        """Return the initial state, zeros: the first attention weights depend on the source alone."""
        upper = (layer.recurrent.empty(memory.states) for layer in self.upper_layers())
        return DeepAttState((self.bottom.empty(memory.states), *upper), PerSentence(self.attention.project(memory)))

    def step(self, token: Tensor, state: DeepAttState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,), N = B·W."""
        projected = self.bottom.project(self.target_embedding(token))  # (N, 4H)
        attended = self.attention(state.layers[0].hidden, state.keys.value, memory)
        states = [self.bottom(projected, attended.context, state.layers[0])]
        fast_forward = self.bottom_fast_forward_projection(projected, attended.context)
        for layer, past in zip(self.upper_layers(), state.layers[1:], strict=True):
            x = torch.cat([fast_forward, self.apply_dropout(states[-1].hidden)], -1)  # (N, 3H)
            states.append(layer.recurrent.step(x, past))
            fast_forward = layer.fast_forward_projection(x)
        records = (Attention("cross", 0, split_hypotheses(attended.weights[:, None])),) if record else ()
        return Step(self.read_out(fast_forward, states[-1].hidden), DeepAttState(tuple(states), state.keys), records)

    def bottom_fast_forward_projection(self, projected: Tensor, contexts: Tensor) -> Tensor:
        """Return the first entries of f^1 = W [y, c] of the bottom decoder layer, from W y (…, 4H) and c (…, M)."""
        passed = self.bottom_passed
        return projected[..., :passed] + F.linear(contexts, self.bottom.step_input.weight[:passed])

    def read_out(self, fast_forward: Tensor, hidden: Tensor) -> Tensor:
        """Map f (…, 4H) and h (…, H) of the top layer to the input of the output layer (…, E)."""
        return self.readout(torch.cat([fast_forward, self.apply_dropout(hidden)], -1))  # type: ignore[no-any-return]

    def apply_dropout(self, x: Tensor) -> Tensor:
        """Apply dropout, Dr in the paper."""
        return dropout(x, self.probability, self.training)

    def upper_layers(self) -> list[FastForward]:
        """Return the decoder layers above the bottom one, typed: a module list loses the type."""
        return cast("list[FastForward]", self.decoder)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V) of outputs (..., E)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)


FAMILY = Family(
    "Zhou et al. 2016",
    DeepAtt,
    DeepAttConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n d^2)", "O(n)", "O(n)"),
    recipe={
        "training": inverse_sqrt_training(1e-3, clip_norm=1.0),
    },
    variants=(
        {"columns": 1},
        {"fast_forward": False},
        {"tie_output": False},
        {"encoder_layers": 1, "decoder_layers": 1},
    ),
)
