"""ConvS2S: Gehring et al., Convolutional Sequence to Sequence Learning, ICML 2017.

Encoder and decoder are stacks of convolutions with gated linear units; every decoder layer attends to the source anew.
All sums of two parts are multiplied by sqrt(0.5), so that the variance stays (section 3.4); the paper names that factor
for residual blocks, here the sums inside the attention have it too.

Departures. The paper says that the context is "simply added" to the decoder's state; since the two may have different
widths, it is projected first. The output layer is a plain matrix and has no weight normalisation. All layers of a stack
have the same width and kernel; in the paper's largest models the upper layers are wider and have kernel 1.
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

from saccade.csrc.library import for_inference
from saccade.errors import SaccadeError
from saccade.interface import Attention, Decoded, Memory, Product, Shared, Source, Step, VocabularySizes
from saccade.layers.attention import apart, side_by_side
from saccade.layers.convolution import Convolution, Pending, Projection, Recent, neighbours
from saccade.models.family import Costs, Family, ModelConfig
from saccade.ops.dropout import dropout
from saccade.ops.glu import bias_glu, linear_glu
from saccade.ops.int8_linear import QuantizedParameter
from saccade.ops.linear import linear
from saccade.ops.single_head_attention import single_head_attention

HALF = math.sqrt(0.5)
DILATIONS = (1, 2, 4, 8, 16)  # of a dilated stack, then from the first again, as in Kalchbrenner et al. 2016


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
    weight_normalisation: bool = True
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
    def kernel_has_a_middle(self) -> ConvS2SConfig:
        """The encoder looks as far to the right as to the left."""
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


class LayerWeights(NamedTuple):
    """The weights of a decoder layer, normalised."""

    convolution: Tensor  # (2D, kernel·D), or (2D, D) for a separable one
    query: Tensor  # (E, D)
    context: Tensor  # (D, E)


class Weights(NamedTuple):
    """Those that a step needs: to normalise them anew at every step would take a tenth of the time."""

    target_width: Tensor  # (D, E)
    responses: Tensor  # (kernel·2D, D) of the first layer's convolution
    layers: tuple[LayerWeights, ...]
    output_width: Tensor  # (E, D)


class ConvS2SState(NamedTuple):
    """What the decoder keeps between steps."""

    place: int
    first: Pending  # of the first layer's convolution, for the next (kernel - 1)·dilation places: (N, 2D) each
    inputs: tuple[Recent, ...]  # of every other layer's convolution, the last (kernel - 1)·dilation: (N, D) each
    weights: Shared[Weights]


class Embedded(nn.Module):
    """table[token] + position, then dropout (section 3.1); normal with deviation 0.1 at first (section 3.5)."""

    def __init__(self, table: nn.Parameter, config: ConvS2SConfig) -> None:
        super().__init__()
        self.table = table
        self.probability = config.dropout
        self.places: nn.Parameter | None = None
        if config.position_embeddings:
            self.places = table_of(config.max_positions, config.embedding, 0.1)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """tokens (B, T), the first of them at place `first`, to (B, T, E)."""
        x = F.embedding(tokens, self.table)
        if self.places is not None:
            last = first + tokens.size(1)
            if last > len(self.places):
                raise SaccadeError(
                    f"a sequence of {last} tokens is longer than the {len(self.places)} positions of this model",
                    do="shorten the input, or train with a larger --model.max-positions",
                )
            x = x + self.places[first:last]
        return dropout(x, self.probability, self.training)


class EncoderLayer(nn.Module):
    """Dropout, convolution, gated linear unit, in a residual (section 3.2)."""

    def __init__(self, config: ConvS2SConfig, dilation: int) -> None:
        super().__init__()
        self.probability = config.dropout
        self.convolution = gated_convolution(config, dilation, causal=False)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """x (B, S, D); hidden (B, S, 1) is True in the padding, which is zero for the convolution."""
        read = dropout(x, self.probability, self.training).masked_fill(hidden, 0.0)
        projection = self.convolution.projection
        return linear_glu(self.convolution.gather(read), projection.weight(), projection.bias, x, HALF)

    def rows(self, x: Tensor, mask: Tensor) -> Tensor:
        """The same of the real places alone, x (R, D), of a mask (B, S); in evaluation."""
        convolution, projection = self.convolution, self.convolution.projection
        read = convolution.gather_rows(x, neighbours(mask, convolution.kernel, convolution.dilation))
        return linear_glu(read, projection.weight(), projection.bias, x, HALF)

    def rows_of_sums(self, vectors: Tensor, summands: Tensor, mask: Tensor) -> Tensor:
        """The same where each x is the sum of some of the vectors (V, D), with their numbers in summands (R, P).

        If there are fewer vectors than places, it is faster to let the convolution work on those and add up after it.
        """
        convolution, projection = self.convolution, self.convolution.projection
        vectors = F.pad(vectors, (0, 0, 0, 1))  # the last is what lies outside: zeros
        responses = linear(vectors, convolution.responses(projection.weight()))  # (V + 1, kernel·2D)
        under = neighbours(mask, convolution.kernel, convolution.dilation)  # (R, kernel)
        numbers = F.pad(summands, (0, 0, 0, 1), value=len(vectors) - 1)[under]  # (R, kernel, P)
        taps = torch.arange(convolution.kernel, device=mask.device)[:, None]
        numbers = (numbers * convolution.kernel + taps).flatten(1)
        both = F.embedding_bag(numbers, responses.view(-1, len(projection.bias)), mode="sum")  # (R, 2D)
        return bias_glu(both, projection.bias, F.embedding_bag(summands, vectors, mode="sum"), HALF)


class DecoderLayer(nn.Module):
    """Dropout, causal convolution, gated linear unit, attention, in a residual (sections 3.2 and 3.3)."""

    def __init__(self, config: ConvS2SConfig, dilation: int) -> None:
        super().__init__()
        self.probability = config.dropout
        self.convolution = gated_convolution(config, dilation, causal=True)
        self.query = projection(config, config.width, config.embedding)
        self.context = projection(config, config.embedding, config.width)

    def forward(self, x: Tensor, embedded: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """All places at once: x (B, T, D), embedded (B, T, E); to the same and weights (B, 1, T, S)."""
        projection = self.convolution.projection
        read = self.convolution.gather(dropout(x, self.probability, self.training))
        state = linear_glu(read, projection.weight(), projection.bias)  # h (B, T, D)
        return self.look(state, x, embedded, memory)

    def step(
        self, x: Tensor, embedded: Tensor, inputs: Recent, memory: Memory, own: LayerWeights
    ) -> tuple[Tensor, Tensor, Recent]:
        """One more place of N hypotheses: x (N, D), embedded (N, E); to x, weights (N, 1, 1, S) and the new inputs."""
        read, inputs = self.convolution.gather_step(x, inputs)
        state = linear_glu(read, own.convolution, self.convolution.projection.bias)  # h (N, D)
        return *self.look_once(state, x, embedded, memory, own), inputs

    def look_once(
        self, state: Tensor, x: Tensor, embedded: Tensor, memory: Memory, own: LayerWeights
    ) -> tuple[Tensor, Tensor]:
        """`look` from one place of N hypotheses, all (N, ·)."""
        state, x, embedded = (side_by_side(part, len(memory.mask)) for part in (state, x, embedded))  # (B, W, ·)
        x, weights = self.look(state, x, embedded, memory, own)
        return x.flatten(0, 1), apart(weights)

    def weights(self) -> LayerWeights:
        """All of them, normalised."""
        return LayerWeights(self.convolution.projection.weight(), self.query.weight(), self.context.weight())

    def look(
        self,
        state: Tensor,
        x: Tensor,
        embedded: Tensor,
        memory: Memory,
        own: LayerWeights | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend from every place (B, T), which sees all of the source (eqs. 1 and 2)."""
        query = (self.query(state, own and own.query) + embedded) * HALF  # d = W h + b + g (B, T, E)
        found = single_head_attention(query, memory.states, memory.summary, memory.mask)
        context = self.context(found.context, own and own.context)  # c (B, T, D)
        x = torch.add(state + context, x, alpha=1 / HALF) * HALF**2  # ((h + c) · HALF + x) · HALF
        return x, found.weights[:, None]


class ConvS2S(nn.Module):
    """Stacks of gated convolutions; each decoder layer attends to the last encoder layer."""

    def __init__(self, config: ConvS2SConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.longest = config.max_positions if config.position_embeddings else None
        self.probability = config.dropout
        self.gradient = 0.5 / config.decoder_layers if config.scale_encoder_gradient else 1.0
        embedding, width = config.embedding, config.width
        target_table = table_of(sizes.target, embedding, 0.1)
        source_table = target_table if sizes.joint else table_of(sizes.source, embedding, 0.1)
        self.source_embedding = Embedded(source_table, config)
        self.target_embedding = Embedded(target_table, config)
        self.source_width = projection(config, embedding, width, dropped=True)
        self.target_width = projection(config, embedding, width, dropped=True)
        self.encoder = nn.ModuleList(EncoderLayer(config, rate) for rate in dilations(config, config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, rate) for rate in dilations(config, config.decoder_layers))
        self.memory_width = projection(config, width, embedding)
        self.output_width = projection(config, width, embedding)
        # Tables and an output layer of its own: they begin with other variances (section 3.5), and there is a bias.
        deviation = math.sqrt((1 - config.dropout) / embedding)
        self.output_table = target_table if config.tie_output else table_of(sizes.target, embedding, deviation)
        self.output_bias = nn.Parameter(torch.empty(sizes.target))
        nn.init.zeros_(self.output_bias)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """source.values (B, S) ids; the states are the keys z, the summary has the values z + e, both (B, S, E).

        Values are multiplied by m·sqrt(1/m), since a mean of m vectors has an m-th of their variance (section 3.4).
        """
        assert isinstance(source.values, Tensor)
        embedded = self.source_embedding(source.values)  # e (B, S, E)
        if self.packs(embedded):
            states = self.encode_rows(source.values, embedded, source.mask)  # z (B, S, E)
        else:
            states = self.encode_all(embedded, source.mask)
        if states.requires_grad and self.gradient != 1.0:  # of the encoder's layers, not of the e in z + e
            states.register_hook(partial(torch.mul, other=self.gradient))  # type: ignore[no-untyped-call]
        values = states + embedded
        return Memory(states, source.mask, summary=values * (HALF * roots(source.mask)).to(values.dtype))

    def encode_all(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """e (B, S, E) to z (B, S, E)."""
        hidden = ~mask[:, :, None]  # (B, S, 1)
        x = self.source_width(embedded)  # (B, S, D)
        for layer in self.encoder:
            x = layer(x, hidden)
        return self.memory_width(x)  # type: ignore[no-any-return]

    def encode_rows(self, tokens: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        """The same of tokens (B, S) with nothing computed for padding, where z is 0."""
        first, *others = cast("list[EncoderLayer]", self.encoder)
        distinct, which = torch.unique(tokens[mask], return_inverse=True)
        summed = not isinstance(
            self.source_width.weight(), QuantizedParameter
        )  # a sum of bytes is another than the bytes of a sum
        if summed and len(distinct) + mask.size(1) < len(which):
            x = first.rows_of_sums(*self.summands(distinct, which, mask), mask)  # (R, D)
        else:
            x = first.rows(self.source_width(embedded[mask]), mask)
        for layer in others:
            x = layer.rows(x, mask)
        states = embedded.new_zeros(embedded.shape)
        states[mask] = self.memory_width(x)
        return states

    def summands(self, distinct: Tensor, which: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer reads of a real place is the sum of a vector of its token and one of its number.

        All such vectors (V, D), those of the distinct tokens first; and of every place the two that it is the sum of,
        (R, 2), or one without positions, by `which` (R,) of the tokens it has.
        """
        embedding, weight = self.source_embedding, self.source_width.weight()
        vectors = self.source_width(F.embedding(distinct, embedding.table), weight)  # the bias goes with the token
        if embedding.places is None:
            return vectors, which[:, None]
        places = linear(embedding.places[: mask.size(1)], weight)
        number = torch.arange(mask.size(1), device=mask.device).expand(mask.shape)[mask]
        return torch.cat([vectors, places]), torch.stack([which, number + len(vectors)], 1)

    def packs(self, x: Tensor) -> bool:
        """Whether nothing is computed for padding, and what depends on a token alone once for all that have it."""
        return not self.training and for_inference(x)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """prefix (B, T): the target shifted right by one."""
        embedded = self.target_embedding(prefix)  # g (B, T, E)
        x = self.target_width(embedded)  # (B, T, D)
        looks: list[Tensor] = []
        for layer in self.decoder:
            x, weights = layer(x, embedded, memory)
            looks.append(weights)
        return Decoded(self.finish(x), records(looks) if record else ())

    def start(self, memory: Memory) -> ConvS2SState:
        """Zeros before the first place."""
        first, *others = self.decoder_layers()
        layers = tuple(layer.weights() for layer in self.decoder_layers())
        responses = first.convolution.responses(layers[0].convolution)
        weights = Weights(self.target_width.weight(), responses, layers, self.output_width.weight())
        pending = first.convolution.nothing_pending(memory.states)
        inputs = tuple(layer.convolution.empty(memory.states) for layer in others)
        return ConvS2SState(0, pending, inputs, Shared(weights))

    def step(self, token: Tensor, state: ConvS2SState, memory: Memory, *, record: bool = False) -> Step:
        """token (N,)."""
        weights = state.weights.value
        (first, *others), (own_of_first, *own_of_others) = self.decoder_layers(), weights.layers
        rows = None
        if self.packs(memory.states):  # many rows wrote the same: each token is looked at once
            token, rows = torch.unique(token, return_inverse=True)
        embedded = self.target_embedding(token[:, None], state.place).squeeze(1)  # (V, E)
        x = self.target_width(embedded, weights.target_width)  # (V, D)
        response = linear(x, weights.responses)  # (V, kernel·2D)
        if rows is not None:
            response, x, embedded = (part.index_select(0, rows) for part in (response, x, embedded))  # (N, ·)
        both, pending = first.convolution.add_step(response, state.first)
        hidden = bias_glu(both, first.convolution.projection.bias)  # h (N, D)
        x, weighed = first.look_once(hidden, x, embedded, memory, own_of_first)
        looks, kept = [weighed], list[Recent]()
        for layer, inputs, own in zip(others, state.inputs, own_of_others, strict=True):
            x, weighed, inputs = layer.step(x, embedded, inputs, memory, own)
            looks.append(weighed)
            kept.append(inputs)
        after = state._replace(place=state.place + 1, first=pending, inputs=tuple(kept))
        return Step(self.finish(x, weights.output_width), after, records(looks) if record else ())

    def finish(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """The decoder's last states (..., D) to what the output layer reads, (..., E)."""
        return dropout(self.output_width(x, weight), self.probability, self.training)

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., E) to (..., V)."""
        return linear(outputs, self.output_table, self.output_bias)

    def output_product(self, outputs: Tensor) -> Product:
        """The output layer up to its product."""
        return Product(outputs, self.output_table, self.output_bias)

    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers with their type, which a module list forgets."""
        return cast("list[DecoderLayer]", self.decoder)


def roots(mask: Tensor) -> Tensor:
    """The root of the number of real places of each sentence (B, 1, 1)."""
    return mask.sum(1).clamp(min=1).double().sqrt()[:, None, None]


def table_of(rows: int, width: int, deviation: float) -> nn.Parameter:
    """A table of normal numbers."""
    table = nn.Parameter(torch.empty(rows, width))
    nn.init.normal_(table, std=deviation)
    return table


def projection(config: ConvS2SConfig, inputs: int, outputs: int, *, dropped: bool = False) -> Projection:
    """A linear map with variance p/n_l, where p is the share of the inputs that dropout keeps (section 3.5)."""
    gain = 1 - config.dropout if dropped else 1.0
    return Projection(inputs, outputs, gain=gain, normalised=config.weight_normalisation)


def gated_convolution(config: ConvS2SConfig, dilation: int, *, causal: bool) -> Convolution:
    """A convolution to twice the width, for a gated linear unit, with variance 4p/n_l (section 3.5)."""
    return Convolution(
        config.width,
        2 * config.width,
        config.kernel,
        dilation=dilation,
        separable=config.separable,
        causal=causal,
        gain=4 * (1 - config.dropout),
        normalised=config.weight_normalisation,
    )


def dilations(config: ConvS2SConfig, layers: int) -> list[int]:
    """How far apart the places stand that each layer's convolution reads."""
    return [DILATIONS[layer % len(DILATIONS)] if config.dilated else 1 for layer in range(layers)]


def records(looks: Sequence[Tensor]) -> tuple[Attention, ...]:
    """One record a decoder layer, of one head."""
    return tuple(Attention("cross", layer, weights) for layer, weights in enumerate(looks))


FAMILY = Family(
    "Gehring et al. 2017",
    ConvS2S,
    ConvS2SConfig,
    PRESETS,
    MINIATURE,
    Costs("O(k n d^2)", "O(1)", "O(n/k)"),
    recipe={
        "training": {"learning_rate": 2e-3, "schedule": "inverse-sqrt", "warmup_steps": 500, "label_smoothing": 0.1}
    },
    variants=(
        {"separable": True},
        {"dilated": True, "encoder_layers": 3, "decoder_layers": 3},
        {"position_embeddings": False},
        {"tie_output": True, "weight_normalisation": False, "scale_encoder_gradient": False},
    ),
    attention=frozenset({"cross"}),
    costs_of=lambda config: Costs(
        "O(k n d + n d^2)" if config.separable else "O(k n d^2)", "O(1)", "O(log_k n)" if config.dilated else "O(n/k)"
    ),
)
