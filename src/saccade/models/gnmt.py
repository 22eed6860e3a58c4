"""GNMT: Wu et al., Google's Neural Machine Translation System, arXiv:1609.08144, 2016.

Deep stacks of LSTM layers with residual connections (section 3.1); the bottom layer of the encoder is bidirectional
(section 3.2). The query of attention is the previous output of the bottom decoder layer, and the context is an input of
every decoder layer. So only the bottom layer depends on attention step by step: in training the others run over all
positions at once.

Departures: the output layer can be tied to the target embedding and has no bias; the decoder starts from zeros; one
device, float arithmetic, no quantization (sections 3.3 and 6).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from saccade.interface import Attention, Decoded, Memory, OutputProjection, PerSentence, Source, Step, VocabularySizes
from saccade.layers.additive_attention import AdditiveAttention
from saccade.layers.attention import split_hypotheses
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import Bidirectional, Recurrent, TwoInputRecurrent
from saccade.models.family import Costs, Family, ModelConfig, inverse_sqrt_training
from saccade.ops.dropout import dropout
from saccade.ops.recurrent_cells import RecurrentState


class GnmtConfig(ModelConfig):
    """Settings of GNMT; the defaults are the paper's (sections 3.1, 8 and 8.3)."""

    width: int = Field(1024, ge=2)
    """Hidden size of each LSTM layer, and of each direction of the bidirectional bottom layer."""
    embedding: int = Field(1024, ge=1)
    """Embedding size."""
    encoder_layers: int = Field(8, ge=1)
    """Layers of the encoder; the bidirectional bottom layer counts as one."""
    decoder_layers: int = Field(8, ge=1)
    """Layers of the decoder."""
    attention: int = Field(1024, ge=1)
    """Hidden size of the attention network."""
    residual: bool = True
    """Use residual connections from the third layer on (section 3.1)."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout of the input of each layer and of the output layer, not of recurrent connections."""
    tie_output: bool = False
    """Tie output layer and target embedding; a linear projection joins them if their widths differ."""


PRESETS = {
    "gnmt-tiny": GnmtConfig(
        width=256, embedding=256, encoder_layers=3, decoder_layers=3, attention=256, dropout=0.2, tie_output=True
    ),
    "gnmt-base": GnmtConfig(),
}

MINIATURE = GnmtConfig(
    width=16, embedding=16, encoder_layers=3, decoder_layers=3, attention=16, dropout=0.0, tie_output=True
)
"""The size that the contract tests use."""

RESIDUAL_FROM = 2  # layers count from 0: in figure 1 the third layer is the first one with a residual connection


class GnmtState(NamedTuple):
    """The decoder state between steps."""

    layers: tuple[RecurrentState, ...]  # bottom layer first
    keys: PerSentence[Tensor]  # (B, S, a), projected once


class Gnmt(nn.Module):
    """Stacked LSTMs with residual connections; the bottom decoder layer attends to the encoder."""

    max_target_positions = None  # a recurrent decoder has no maximum length

    def __init__(self, config: GnmtConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, embedding = config.width, config.embedding
        self.probability = config.dropout
        self.residual_from = RESIDUAL_FROM if config.residual else max(config.encoder_layers, config.decoder_layers)
        self.source_embedding, self.target_embedding = token_embeddings(sizes, embedding, config.dropout)

        self.both_ways = Bidirectional("lstm", embedding, width)
        self.encoder = nn.ModuleList(
            Recurrent("lstm", width if layer > 1 else 2 * width, width) for layer in range(1, config.encoder_layers)
        )
        memory = width if config.encoder_layers > 1 else 2 * width
        self.attention = AdditiveAttention(width, memory, config.attention)
        self.bottom = TwoInputRecurrent("lstm", embedding, memory, width)
        self.decoder = nn.ModuleList(Recurrent("lstm", width + memory, width) for _ in range(1, config.decoder_layers))

        self.output = OutputLayer(width, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids; the encoder has no attention to record.

        Padding comes after the real positions, and no last state is needed: the upper layers need no mask.
        """
        assert isinstance(source.values, Tensor)
        x = self.both_ways.outputs(self.source_embedding(source.values), source.mask)  # (B, S, 2D)
        for number, layer in enumerate(self.encoder, start=1):
            output, _ = layer(self.apply_dropout(x))
            x = self.add(number, output, x)  # (B, S, D)
        return Memory(x, source.mask)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T), from the begin symbol on; the layers above the bottom one run on all positions."""
        projected = self.bottom.project(self.target_embedding(prefix.T))  # (T, B, 4D)
        state, keys = self.bottom.empty(memory.states), self.attention.project(memory)
        hiddens: list[Tensor] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        for inputs in projected.unbind(0):
            attended = self.attention(state.hidden, keys, memory)  # the query is y_{i-1} in eq. 4
            state = self.bottom(inputs, self.apply_dropout(attended.context), state)
            hiddens.append(state.hidden)
            contexts.append(attended.context)
            weights.append(attended.weights)
        x = torch.stack(hiddens, 1)  # (B, T, D)
        context = torch.stack(contexts, 1)  # (B, T, M)
        for number, layer in enumerate(self.decoder, start=1):
            output, _ = layer(self.apply_dropout(torch.cat([x, context], -1)))
            x = self.add(number, output, x)  # (B, T, D)
        records = (Attention("cross", 0, torch.stack(weights, 2)),) if record else ()  # (B, 1, T, S)
        return Decoded(self.apply_dropout(x), records)

    def start(self, memory: Memory) -> GnmtState:
        """Return the initial state, zeros: the first attention weights depend on the source alone."""
        layers = (
            self.bottom.empty(memory.states),
            *(layer.empty(memory.states) for layer in self.upper_layers()),
        )
        return GnmtState(layers, PerSentence(self.attention.project(memory)))

    def step(self, token: Tensor, state: GnmtState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,), N = B·W."""
        projected = self.bottom.project(self.target_embedding(token))  # (N, 4D)
        attended = self.attention(state.layers[0].hidden, state.keys.value, memory)
        context = self.apply_dropout(attended.context)  # (N, M)
        states = [self.bottom(projected, context, state.layers[0])]
        x = states[0].hidden  # (N, D)
        for number, (layer, past) in enumerate(zip(self.upper_layers(), state.layers[1:], strict=True), start=1):
            states.append(layer.step(self.apply_dropout(torch.cat([x, attended.context], -1)), past))
            x = self.add(number, states[-1].hidden, x)  # (N, D)
        records = (Attention("cross", 0, split_hypotheses(attended.weights[:, None])),) if record else ()
        return Step(self.apply_dropout(x), GnmtState(tuple(states), state.keys), records)

    def add(self, number: int, output: Tensor, x: Tensor) -> Tensor:
        """Return x^i = m^i + x^{i-1} from the third layer on (eq. 6); the layers are counted from 0."""
        return output + x if number >= self.residual_from else output

    def apply_dropout(self, x: Tensor) -> Tensor:
        """Apply dropout between layers (Zaremba et al. 2014)."""
        return dropout(x, self.probability, self.training)

    def upper_layers(self) -> list[Recurrent]:
        """Return the decoder layers above the bottom one, typed: a module list loses the type."""
        return cast("list[Recurrent]", self.decoder)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V) of the top layer's outputs (..., D)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)


# The length penalty is that of section 7. Its coverage penalty needs a beam: as a default it would rule out greedy
# search, so it is in recipes/gnmt.yaml.
FAMILY = Family(
    "Wu et al. 2016",
    Gnmt,
    GnmtConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n d^2)", "O(n)", "O(n)"),
    recipe={
        "training": inverse_sqrt_training(5e-3, clip_norm=1.0),
        "decoding": {"length_penalty": "gnmt", "length_alpha": 0.6},
    },
    variants=(
        {"residual": False},
        {"tie_output": False},
        {"embedding": 12, "encoder_layers": 1, "decoder_layers": 2},
        {"encoder_layers": 4, "decoder_layers": 1},
    ),
)
