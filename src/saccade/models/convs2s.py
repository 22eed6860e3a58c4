"""ConvS2S: Gehring et al., Convolutional Sequence to Sequence Learning, ICML 2017.

Encoder and decoder are stacks of convolutions with gated linear units; every decoder layer has its own attention.
All sums of two terms are multiplied by sqrt(0.5), which keeps the variance (section 3.4).

Departures. The paper names the factor sqrt(0.5) for residual blocks; here the sums inside the attention have it too.
The paper says that the context is "simply added" to the decoder's state; since the two may have different widths, it is
projected first. The output layer is a plain matrix and has no weight normalization. All layers of a stack have the same
width and kernel; in the paper's largest models the upper layers are wider and have kernel 1. The gradient of the
encoder is divided by twice the number of cross-attentions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.errors import SaccadeError
from saccade.interface import Attention, Decoded, Memory, OutputProjection, Source, Step, VocabularySizes
from saccade.layers.attention import group_by_sentence
from saccade.layers.convolution import Convolution, ConvolutionCache, Projection, tap_indices
from saccade.models.family import Costs, Family, ModelConfig, inverse_sqrt_training
from saccade.ops.dropout import dropout
from saccade.ops.glu import linear_glu
from saccade.ops.linear import linear
from saccade.ops.packed import PackedLayout
from saccade.ops.single_head_attention import single_head_attention
from saccade.symbols import Symbols

HALF = math.sqrt(0.5)  # the sum of two independent terms has twice their variance
DILATIONS = (1, 2, 4, 8, 16)  # of the layers of a dilated stack, in a cycle, as in Kalchbrenner et al. 2016


class ConvS2SConfig(ModelConfig):
    """Settings of ConvS2S; the defaults are the paper's (sections 4.2 and 5.1), but for the dropout."""

    embedding: int = Field(512, ge=1)
    """Embedding size; also the width of the attention and of the output layer's input."""
    encoder_layers: int = Field(15, ge=1)
    """Convolution blocks of the encoder."""
    decoder_layers: int = Field(15, ge=1)
    """Convolution blocks of the decoder, each with its own cross-attention."""
    kernel: int = Field(3, ge=1)
    """Kernel size, an odd number; the decoder convolutions are causal."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout of the embeddings, of the input of each convolution, and of the decoder output."""
    position_embeddings: bool = True
    """Add learned position embeddings (section 3.1)."""
    max_positions: int = Field(1024, ge=1)
    """Maximum sequence length with position embeddings."""
    weight_normalization: bool = True
    """Weight normalization (Salimans and Kingma 2016)."""
    scale_encoder_gradient: bool = True
    """Divide encoder gradients by twice the number of cross-attentions (section 3.4: by their number)."""
    separable: bool = False
    """Use depthwise separable convolutions (Chollet 2017; Kaiser et al. 2018)."""
    dilated: bool = False
    """Use dilated convolutions: dilation 1, 2, 4, 8, 16 from layer to layer, then 1 again."""
    tie_output: bool = False
    """Tie output layer and target embedding."""

    @model_validator(mode="after")
    def check_kernel_is_odd(self) -> ConvS2SConfig:
        """Check that the kernel is odd: the encoder's convolutions are centered."""
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} has no middle: give an odd number")
        return self


PRESETS = {
    "convs2s-tiny": ConvS2SConfig(width=256, embedding=256, encoder_layers=4, decoder_layers=3, tie_output=True),
    # The paper's WMT'14 English-German model has wider upper layers; this one has its depth and its lowest width.
    "convs2s-base": ConvS2SConfig(),
    # The paper's WMT'16 English-Romanian model (section 5.1).
    "convs2s-deep": ConvS2SConfig(encoder_layers=20, decoder_layers=20),
}

MINIATURE = ConvS2SConfig(width=16, embedding=12, encoder_layers=2, decoder_layers=2, dropout=0.0, max_positions=64)
"""The size that the contract tests use."""


class ConvS2SState(NamedTuple):
    """The decoder's state between two steps."""

    position: int
    caches: tuple[ConvolutionCache, ...]  # of each layer's convolution: the last (kernel - 1)·dilation inputs (N, D)


class LayerOutput(NamedTuple):
    """A decoder layer's output and its attention weights."""

    x: Tensor  # (N, D)
    weights: Tensor  # (B, 1, T, S), of a step (N, 1, 1, S)


class SteppedLayers(NamedTuple):
    """The output of the last of some decoder layers, and the attention weights and next caches of each."""

    x: Tensor  # (N, D)
    weights: list[Tensor]  # (N, 1, 1, S) each
    caches: tuple[ConvolutionCache, ...]


class Embedding(nn.Module):
    """Token embedding + position embedding, then dropout (section 3.1); initial deviation 0.1 (section 3.5)."""

    def __init__(self, table: nn.Parameter, config: ConvS2SConfig) -> None:
        super().__init__()
        self.table = table
        self.probability = config.dropout
        self.positions_table: nn.Parameter | None = None  # (max_positions, E), position embeddings p
        if config.position_embeddings:
            self.positions_table = embedding_table(config.max_positions, config.embedding, 0.1)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens (B, T), the first of them at position `first`: (B, T, E)."""
        x = F.embedding(tokens, self.table)
        if self.positions_table is not None:
            end = first + tokens.size(1)
            if end > len(self.positions_table):
                raise SaccadeError(
                    f"a sequence of {end} tokens is longer than the {len(self.positions_table)} positions "
                    "of this model",
                    hint="shorten the input, or train with a larger --model.max-positions",
                )
            x = x + self.positions_table[first:end]
        return dropout(x, self.probability, self.training)  # (B, T, E)


class EncoderLayer(nn.Module):
    """Dropout, convolution, gated linear unit, in a residual connection (section 3.2)."""

    def __init__(self, config: ConvS2SConfig, dilation: int) -> None:
        super().__init__()
        self.probability = config.dropout
        self.convolution = gated_convolution(config, dilation, causal=False)

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        """Compute all positions at once, packed: x (N, D), the convolution's `tap_indices` (N, kernel)."""
        unfolded = self.convolution.unfold(dropout(x, self.probability, self.training), indices)  # (N, kernel·D)
        projection = self.convolution.projection
        return linear_glu(unfolded, projection.weight(), projection.bias, x, HALF)  # (N, D)


class DecoderLayer(nn.Module):
    """Dropout, causal convolution, gated linear unit, attention, in a residual connection (sections 3.2 and 3.3)."""

    def __init__(self, config: ConvS2SConfig, dilation: int) -> None:
        super().__init__()
        self.probability = config.dropout
        self.convolution = gated_convolution(config, dilation, causal=True)
        self.query = projection(config, config.width, config.embedding)
        self.context = projection(config, config.embedding, config.width)

    def forward(
        self, x: Tensor, embedded: Tensor, indices: Tensor, layout: PackedLayout, memory: Memory
    ) -> LayerOutput:
        """Compute all positions at once, packed: x (N, D), target embeddings (N, E), `tap_indices` (N, kernel)."""
        h = self.gate(self.convolution.unfold(dropout(x, self.probability, self.training), indices))  # (N, D)
        query = layout.unpack(self.attention_query(h, embedded))  # d (B, T, E)
        attention = single_head_attention(query, memory.states, memory.extra, memory.mask)  # c (B, T, E), a (B, T, S)
        return LayerOutput(self.residual_sum(x, h, layout.pack(attention.context)), attention.weights[:, None])

    def step(
        self, x: Tensor, embedded: Tensor, cache: ConvolutionCache, memory: Memory
    ) -> tuple[LayerOutput, ConvolutionCache]:
        """Compute one new position of N hypotheses: x (N, D), target embeddings (N, E)."""
        unfolded, cache = self.convolution.unfold_step(x, cache)
        return self.attend_step(x, self.gate(unfolded), embedded, memory), cache

    def attend_step(self, x: Tensor, h: Tensor, embedded: Tensor, memory: Memory) -> LayerOutput:
        """Compute a step from its gated linear unit h (N, D) on; the W hypotheses of a sentence share its memory."""
        query = self.attention_query(h, embedded)  # d (N, E)
        query = group_by_sentence(query, len(memory.mask))  # (B, W, E)
        attention = single_head_attention(query, memory.states, memory.extra, memory.mask)  # c (B, W, E), a (B, W, S)
        x = self.residual_sum(x, h, attention.context.flatten(0, 1))  # (N, D)
        return LayerOutput(x, attention.weights.flatten(0, 1)[:, None, None])

    def gate(self, unfolded: Tensor) -> Tensor:
        """Return the gated linear unit of the convolution of unfolded inputs (N, kernel·D): h (N, D)."""
        projection = self.convolution.projection
        return linear_glu(unfolded, projection.weight(), projection.bias)

    def attention_query(self, h: Tensor, embedded: Tensor) -> Tensor:
        """Return d = W h + b + g (eq. 1), (N, E)."""
        return (self.query(h) + embedded) * HALF  # type: ignore[no-any-return]

    def residual_sum(self, x: Tensor, h: Tensor, context: Tensor) -> Tensor:
        """Return the layer's input x (N, D), plus h (N, D), plus its context vector c (N, E) (eq. 2)."""
        return torch.add(h + self.context(context), x, alpha=1 / HALF) * HALF**2  # ((h + c) · HALF + x) · HALF


class ConvS2S(nn.Module):
    """Stacks of gated convolutions; each decoder layer attends to the last encoder layer."""

    def __init__(self, config: ConvS2SConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.max_target_positions = config.max_positions if config.position_embeddings else None
        self.probability = config.dropout
        self.gradient = 0.5 / config.decoder_layers if config.scale_encoder_gradient else 1.0
        embedding, width = config.embedding, config.width
        target_table = embedding_table(sizes.target, embedding, 0.1)
        source_table = target_table if sizes.joint else embedding_table(sizes.source, embedding, 0.1)
        self.source_embedding = Embedding(source_table, config)
        self.target_embedding = Embedding(target_table, config)
        self.source_width = projection(config, embedding, width, dropped=True)
        self.target_width = projection(config, embedding, width, dropped=True)
        self.encoder = nn.ModuleList(EncoderLayer(config, rate) for rate in dilations(config, config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, rate) for rate in dilations(config, config.decoder_layers))
        self.memory_width = projection(config, width, embedding)
        self.output_width = projection(config, width, embedding)
        # An untied output table has another initial variance than an embedding (section 3.5), and the layer has a bias.
        deviation = math.sqrt((1 - config.dropout) / embedding)
        self.output_table = target_table if config.tie_output else embedding_table(sizes.target, embedding, deviation)
        self.output_bias = nn.Parameter(torch.empty(sizes.target))
        nn.init.zeros_(self.output_bias)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids."""
        assert isinstance(source.values, Tensor)
        layout, layers = PackedLayout.of(source.mask), self.encoder_layers()
        indices = tap_indices((layer.convolution for layer in layers), source.mask, layout)
        embedded = layout.pack(self.source_embedding(source.values))  # e (N, E)
        x = self.source_width(embedded)  # (N, D)
        for layer, own in zip(layers, indices, strict=True):
            x = layer(x, own)  # (N, D)
        return self.memory(self.memory_width(x), embedded, source.mask, layout)

    def memory(self, states: Tensor, embedded: Tensor, mask: Tensor, layout: PackedLayout) -> Memory:
        """Return keys z as states and values z + e as `extra`, both (B, S, E), from packed z and e (N, E).

        Values are multiplied by m·sqrt(1/m), since a mean of m vectors has an m-th of their variance (section 3.4).
        `mask` is True at real positions.
        """
        if states.requires_grad and self.gradient != 1.0:  # of the encoder's layers, not of the e in z + e
            states.register_hook(partial(torch.mul, other=self.gradient))  # type: ignore[no-untyped-call]
        values = layout.unpack(states + embedded)  # (B, S, E)
        scale = (HALF * root_of_length(mask)).to(values.dtype)  # (B, 1, 1)
        return Memory(layout.unpack(states), mask, extra=values * scale)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T): the target shifted right by one, so that position t predicts token t."""
        mask = prefix != Symbols.pad  # (B, T)
        layout, layers = PackedLayout.of(mask), self.decoder_layers()
        indices = tap_indices((layer.convolution for layer in layers), mask, layout)
        embedded = layout.pack(self.target_embedding(prefix))  # g (N, E)
        x = self.target_width(embedded)  # (N, D)
        weights: list[Tensor] = []
        for layer, own in zip(layers, indices, strict=True):
            x, layer_weights = layer(x, embedded, own, layout, memory)  # (N, D), (B, 1, T, S)
            weights.append(layer_weights)
        return Decoded(layout.unpack(self.finish(x)), records(weights) if record else ())

    def start(self, memory: Memory) -> ConvS2SState:
        """Return the initial state: the convolutions read zeros before the first position."""
        return ConvS2SState(0, tuple(layer.convolution.empty_cache(memory.states) for layer in self.decoder_layers()))

    def step(self, token: Tensor, state: ConvS2SState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position of N hypotheses: token (N,)."""
        embedded = self.target_embedding(token[:, None], state.position).squeeze(1)  # g (N, E)
        x = self.target_width(embedded)  # (N, D)
        x, weights, caches = step_layers(self.decoder_layers(), x, embedded, state.caches, memory)
        return Step(self.finish(x), ConvS2SState(state.position + 1, caches), records(weights) if record else ())

    def finish(self, x: Tensor) -> Tensor:
        """Return the last decoder layer's output (N, D) to the output layer's input (N, E)."""
        return dropout(self.output_width(x), self.probability, self.training)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V) of outputs (..., E)."""
        return linear(outputs, self.output_table, self.output_bias)

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the matrix product of the output layer."""
        return OutputProjection(outputs, self.output_table, self.output_bias)

    def encoder_layers(self) -> list[EncoderLayer]:
        """Return the layers of the encoder, typed."""
        return cast("list[EncoderLayer]", list(self.encoder))

    def decoder_layers(self) -> list[DecoderLayer]:
        """Return the layers of the decoder, typed."""
        return cast("list[DecoderLayer]", list(self.decoder))


def step_layers(
    layers: Sequence[DecoderLayer], x: Tensor, embedded: Tensor, caches: Sequence[ConvolutionCache], memory: Memory
) -> SteppedLayers:
    """Compute decoder layers for one new position of N hypotheses: x (N, D), target embeddings (N, E)."""
    weights: list[Tensor] = []
    next_caches: list[ConvolutionCache] = []
    for layer, cache in zip(layers, caches, strict=True):
        (x, layer_weights), cache = layer.step(x, embedded, cache, memory)
        weights.append(layer_weights)
        next_caches.append(cache)
    return SteppedLayers(x, weights, tuple(next_caches))


def root_of_length(mask: Tensor) -> Tensor:
    """Return the square root of the length of each sentence of mask (B, S), True = real position: (B, 1, 1)."""
    return mask.sum(1).clamp(min=1).double().sqrt()[:, None, None]


def embedding_table(entries: int, width: int, deviation: float) -> nn.Parameter:
    """Make an embedding table (entries, width), initially normal."""
    table = nn.Parameter(torch.empty(entries, width))
    nn.init.normal_(table, std=deviation)
    return table


def projection(config: ConvS2SConfig, inputs: int, outputs: int, *, dropped: bool = False) -> Projection:
    """Make a linear map with initial variance p/n_l; dropout keeps an input with probability p (section 3.5)."""
    gain = 1 - config.dropout if dropped else 1.0
    return Projection(inputs, outputs, gain=gain, normalized=config.weight_normalization)


def gated_convolution(config: ConvS2SConfig, dilation: int, *, causal: bool) -> Convolution:
    """Make a convolution to twice the width, for a gated linear unit, with initial variance 4p/n_l (section 3.5)."""
    return Convolution(
        config.width,
        2 * config.width,
        config.kernel,
        dilation=dilation,
        separable=config.separable,
        causal=causal,
        gain=4 * (1 - config.dropout),
        normalized=config.weight_normalization,
    )


def dilations(config: ConvS2SConfig, layers: int) -> list[int]:
    """Return the dilation of each layer of a stack."""
    return [DILATIONS[layer % len(DILATIONS)] if config.dilated else 1 for layer in range(layers)]


def records(weights: Sequence[Tensor]) -> tuple[Attention, ...]:
    """Return the recorded attention weights of each decoder layer."""
    return tuple(Attention("cross", layer, own) for layer, own in enumerate(weights))


FAMILY = Family(
    "Gehring et al. 2017",
    ConvS2S,
    ConvS2SConfig,
    PRESETS,
    MINIATURE,
    Costs("O(k n d^2)", "O(1)", "O(n/k)"),
    recipe={"training": inverse_sqrt_training(2e-3)},
    variants=(
        {"separable": True},
        {"dilated": True, "encoder_layers": 3, "decoder_layers": 3},
        {"position_embeddings": False},
        {"tie_output": True, "weight_normalization": False, "scale_encoder_gradient": False},
    ),
    attention=frozenset({"cross"}),
    costs_of=lambda config: Costs(
        "O(k n d + n d^2)" if config.separable else "O(k n d^2)", "O(1)", "O(log_k n)" if config.dilated else "O(n/k)"
    ),
)
