"""Inference of ConvS2S: values that depend only on the weights, or only on a token, are computed once.

- Weight normalization: the plan keeps the normalized weights.
- First decoder layer: its convolution is linear in x_t, and x_t depends on the token and the position alone. The
  hypotheses of a batch end in few distinct tokens, so its products with all taps are computed once for each of these,
  and added to the sums of the outputs that read x_t.
- First encoder layer: x_t is the sum of a vector of the token and one of the position, so the products of each distinct
  token and of each position are computed once.

A sum of int8 products is not the int8 product of a sum, so the first layers are computed this way with float32 weights
only.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Decoded, Memory, OutputProjection, Source, Step
from saccade.layers.convolution import Convolution, ConvolutionCache, Projection, tap_indices
from saccade.models.convs2s import HALF, ConvS2S, ConvS2SState, records, step_layers
from saccade.ops.glu import bias_glu
from saccade.ops.int8_linear import QuantizedParameter
from saccade.ops.linear import linear
from saccade.ops.packed import PackedLayout
from saccade.plans.fingerprint import Fingerprint
from saccade.plans.quantization import quantized_copy

PartialSums = tuple[Tensor, ...]
"""Contributions of the inputs so far to the next `reach` outputs of a convolution, each (N, outputs), nearest first."""


class PlanState(NamedTuple):
    """The decoder's state between two steps of a plan."""

    position: int
    sums: PartialSums  # of the first layer's convolution, without its bias
    caches: tuple[ConvolutionCache, ...]  # of the other layers, as in `ConvS2SState`


class Compiled(NamedTuple):
    """Values that a plan has computed from the weights of a model."""

    fingerprint: Fingerprint  # of the model that the plan was built for
    model: ConvS2S | None  # with normalized weights; None: the model is in training mode
    encoder_taps: Tensor | None = None  # `tap_weight` of the first layers, (kernel·2D, D); None: weights are quantized
    decoder_taps: Tensor | None = None


class ConvS2SPlan:
    """Inference plan of ConvS2S with the model interface; the model itself runs in training mode and with gradients.

    `encode`, `decode` and `start` check whether the model has changed and recompile if so; `step` and `logits` use the
    most recently compiled values without a check.
    """

    def __init__(self, model: ConvS2S, *, quantize: bool = False) -> None:
        self.model = model
        self.quantize = quantize
        self.compiled = self.compile()

    def compile(self) -> Compiled:
        """Normalize weights; with `quantize`, quantize all matrices but those with weight normalization."""
        fingerprint = Fingerprint(self.model)
        if any(module.training for module in self.model.modules()):
            return Compiled(fingerprint, None)
        with torch.no_grad():
            normalized = [part.direction for part in normalized_projections(self.model)]
            model = normalized_copy(quantized_copy(self.model, normalized) if self.quantize else self.model)
        encoder, decoder = model.encoder_layers()[0].convolution, model.decoder_layers()[0].convolution
        projections = model.source_width, model.target_width, encoder.projection, decoder.projection
        if any(isinstance(projection.weight(), QuantizedParameter) for projection in projections):
            return Compiled(fingerprint, model)
        return Compiled(fingerprint, model, tap_weight(encoder), tap_weight(decoder))

    def __deepcopy__(self, memo: dict[int, Any]) -> ConvS2SPlan:
        """The plan of a copy of the model."""
        return ConvS2SPlan(copy.deepcopy(self.model, memo), quantize=self.quantize)

    def current(self) -> Compiled:
        """Return the compiled values; recomputed if the model has changed."""
        compiled = self.compiled
        if not compiled.fingerprint.matches():
            compiled = self.compiled = self.compile()
        return compiled

    def inference_model(self, compiled: Compiled) -> ConvS2S:
        """Return the model with normalized weights; the model itself under gradients, autocast and in training mode."""
        return (compiled.model if runs_plan(self.model.output_bias) else None) or self.model

    @property
    def max_target_positions(self) -> int | None:
        """The maximum number of target positions of the model."""
        return self.model.max_target_positions

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode a source; the products of the first layer are computed once per distinct token and position."""
        compiled = self.current()
        model, taps = self.inference_model(compiled), compiled.encoder_taps
        assert isinstance(source.values, Tensor)
        if model is self.model or taps is None:
            return model.encode(source, record=record)
        layout, (first, *others) = PackedLayout.of(source.mask), model.encoder_layers()
        distinct, inverse = torch.unique(layout.pack(source.values), return_inverse=True)
        if len(distinct) + source.mask.size(1) >= len(inverse):
            return model.encode(source, record=record)
        indices = tap_indices((layer.convolution for layer in (first, *others)), source.mask, layout)
        embedded = layout.pack(model.source_embedding(source.values))  # e (N, E)
        vectors, summands = summed_inputs(model, distinct, inverse, layout.pack(positions_of(source.mask)))
        x = first_encoder_layer(first.convolution, taps, vectors, summands, indices[0])  # (N, D)
        for layer, own in zip(others, indices[1:], strict=True):
            x = layer(x, own)
        return model.memory(model.memory_width(x), embedded, source.mask, layout)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode a prefix with the model."""
        return self.inference_model(self.current()).decode(prefix, memory, record=record)

    def start(self, memory: Memory) -> ConvS2SState | PlanState:
        """Return the initial decoder state, with zero partial sums for the first layer."""
        compiled = self.current()
        model, taps = self.inference_model(compiled), compiled.decoder_taps
        state = model.start(memory)
        if model is self.model or taps is None:
            return state
        convolution = model.decoder_layers()[0].convolution
        zeros = taps.new_zeros(len(memory.mask), convolution.projection.bias.numel())
        return PlanState(0, (zeros,) * convolution.reach, state.caches[1:])

    def step(self, token: Tensor, state: ConvS2SState | PlanState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position; the convolution of the first layer is computed once per distinct token."""
        compiled = self.compiled  # `start` has checked the fingerprint
        model, taps = self.inference_model(compiled), compiled.decoder_taps
        if isinstance(state, ConvS2SState):
            return model.step(token, state, memory, record=record)
        if model is self.model or taps is None:
            raise RuntimeError("the model has changed, or gradients were enabled, since this state was created")
        distinct, inverse = torch.unique(token, return_inverse=True)
        embedded = model.target_embedding(distinct[:, None], state.position).squeeze(1)  # (V, E)
        x = model.target_width(embedded)  # (V, D)
        products = linear(x, taps)  # (V, kernel·2D)
        products, x, embedded = (part.index_select(0, inverse) for part in (products, x, embedded))  # (N, ·)
        first, *others = model.decoder_layers()
        convolved, sums = add_products(products, state.sums, first.convolution)
        h = bias_glu(convolved, first.convolution.projection.bias)
        x, first_weights = first.attend_step(x, h, embedded, memory)
        x, weights, caches = step_layers(others, x, embedded, state.caches, memory)
        attention = records([first_weights, *weights]) if record else ()
        return Step(model.finish(x), PlanState(state.position + 1, sums, caches), attention)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the output layer of the model."""
        return self.inference_model(self.compiled).logits(outputs)

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last linear layer of the model."""
        return self.inference_model(self.compiled).output_projection(outputs)


def runs_plan(weight: Tensor) -> bool:
    """Return whether a plan may run: not with gradients, and not under autocast, which casts the weights."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled(weight.device.type)


def normalized_projections(model: ConvS2S) -> list[Projection]:
    """Return the projections with weight normalization."""
    return [part for part in model.modules() if isinstance(part, Projection) and part.scale is not None]


def normalized_copy(model: ConvS2S) -> ConvS2S:
    """Copy a model, with normalized weights instead of directions and scales; all other tensors are shared."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    found = copy.deepcopy(model, memo)
    for part in normalized_projections(found):
        with torch.no_grad():
            part.direction = nn.Parameter(part.weight(), requires_grad=False)
        part.scale = None
    return found


def tap_weight(convolution: Convolution) -> Tensor:
    """Return the weight of a convolution as a map (kernel·outputs, inputs) from an input to its products with all taps.

    Products come in the order of the taps: those of the first tap belong to the latest output.
    """
    weight = convolution.projection.weight().detach()
    if convolution.depthwise is None:
        return weight.view(len(weight), convolution.kernel, -1).transpose(0, 1).flatten(0, 1)
    return (convolution.depthwise.detach()[:, None] * weight).flatten(0, 1)


def positions_of(mask: Tensor) -> Tensor:
    """Return the position of each entry of mask (B, S), True = real position."""
    return torch.arange(mask.size(1), device=mask.device).expand(mask.shape)


def summed_inputs(model: ConvS2S, distinct: Tensor, inverse: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of the first encoder layer as sums: vectors (V, D), and indices (N, 1 or 2) of the summands.

    Vectors are those of the distinct tokens, then those of the positions; `inverse` (N,) are the tokens of the inputs.
    """
    embedding, projection = model.source_embedding, model.source_width
    tokens = projection(F.embedding(distinct, embedding.table))  # the bias is added once, with the token
    if embedding.positions_table is None:
        return tokens, inverse[:, None]
    vectors = linear(embedding.positions_table[: int(positions.max()) + 1], projection.weight())
    return torch.cat([tokens, vectors]), torch.stack([inverse, positions + len(tokens)], 1)


def first_encoder_layer(
    convolution: Convolution, taps: Tensor, vectors: Tensor, summands: Tensor, indices: Tensor
) -> Tensor:
    """Compute an `EncoderLayer` for sums of vectors (V, D): summands (N, P), tap indices (N, kernel) to (N, D)."""
    products = linear(F.pad(vectors, (0, 0, 0, 1)), taps)  # (V + 1, kernel·2D), zeros outside of a sequence
    numbers = F.pad(summands, (0, 0, 1, 0), value=len(vectors))[indices]  # (N, kernel, P)
    numbers = numbers * convolution.kernel + torch.arange(convolution.kernel, device=numbers.device)[:, None]
    bias = convolution.projection.bias
    convolved = F.embedding_bag(numbers.flatten(1), products.view(-1, len(bias)), mode="sum")  # (N, 2D)
    return bias_glu(convolved, bias, F.embedding_bag(summands, vectors, mode="sum"), HALF)


def add_products(products: Tensor, sums: PartialSums, convolution: Convolution) -> tuple[Tensor, PartialSums]:
    """Return the convolution (N, outputs) at a new position, without its bias, and the partial sums of later outputs.

    The products (N, kernel·outputs) are those of the new input with all taps.
    """
    latest, *others = products.chunk(convolution.kernel, 1)
    added = [*sums, latest]
    for number, product in enumerate(reversed(others)):
        added[number * convolution.dilation] = added[number * convolution.dilation] + product
    now, *later = added
    return now, tuple(later)
