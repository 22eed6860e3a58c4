"""Inference of ConvS2S: what depends on the weights alone, or on a token alone, is computed once.

- Weight normalization: the plan keeps the normalised weights.
- First decoder layer: its convolution is linear in x_t, and x_t depends on the token and the position alone. The
  hypotheses of a batch end in few distinct tokens, so its products with all taps are computed once for each of these,
  and added to the sums of the outputs that read x_t. A sum of int8 products is not the int8 product of a sum, so this
  is for float32 weights only.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.interface import Decoded, Memory, Product, Source, Step
from saccade.layers.convolution import Convolution, ConvolutionCache, Projection
from saccade.models.convs2s import ConvS2S, ConvS2SState, records, step_layers
from saccade.ops.glu import bias_glu
from saccade.ops.int8_linear import QuantizedParameter
from saccade.ops.linear import linear
from saccade.plans.fingerprint import Fingerprint

PartialSums = tuple[Tensor, ...]
"""What the inputs so far add to the next `reach` outputs of a convolution, each (N, outputs), the nearest first."""


class PlanState(NamedTuple):
    """The decoder's state between two steps of a plan."""

    position: int
    sums: PartialSums  # of the first layer's convolution, without its bias
    caches: tuple[ConvolutionCache, ...]  # of the other layers, as in `ConvS2SState`


class Compiled(NamedTuple):
    """What a plan has computed from the weights of a model."""

    fingerprint: Fingerprint  # of the model that the plan was built for
    model: ConvS2S | None  # with normalised weights; None: the model is in training mode
    tap_weight: Tensor | None  # of the first decoder layer, (kernel·2D, D); None: its weight is quantized


class ConvS2SPlan:
    """A ConvS2S in inference, with its methods of the interface; training and gradients are left to the model."""

    def __init__(self, model: ConvS2S) -> None:
        self.model = model
        self.compiled = self.compile()

    def compile(self) -> Compiled:
        """Normalise the weights."""
        fingerprint = Fingerprint(self.model)
        if any(module.training for module in self.model.modules()):
            return Compiled(fingerprint, None, None)
        model = normalised_copy(self.model)
        convolution = model.decoder_layers()[0].convolution
        quantized = isinstance(convolution.projection.weight(), QuantizedParameter)
        return Compiled(fingerprint, model, None if quantized else tap_weight(convolution))

    def current(self) -> Compiled:
        """What was computed, computed again if the model has changed."""
        if not self.compiled.fingerprint.holds():
            self.compiled = self.compile()
        return self.compiled

    def inference_model(self) -> ConvS2S:
        """The model with normalised weights; the model itself under gradients, autocast and in training mode."""
        found = self.current().model if runs_plan(self.model.output_bias) else None
        return found or self.model

    @property
    def longest(self) -> int | None:
        """The most positions that the model can decode."""
        return self.model.longest

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """As the model's."""
        return self.inference_model().encode(source, record=record)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """As the model's."""
        return self.model.decode(prefix, memory, record=record)

    def start(self, memory: Memory) -> ConvS2SState | PlanState:
        """As the model's; zero sums if the first layer is computed for each distinct token."""
        model, tap_weight = self.inference_model(), self.compiled.tap_weight
        state = model.start(memory)
        if model is self.model or tap_weight is None:
            return state
        convolution = model.decoder_layers()[0].convolution
        zeros = tap_weight.new_zeros(len(memory.mask), convolution.projection.bias.numel())
        return PlanState(0, (zeros,) * convolution.reach, state.caches[1:])

    def step(self, token: Tensor, state: ConvS2SState | PlanState, memory: Memory, *, record: bool = False) -> Step:
        """As the model's; the first layer's convolution once for each distinct token."""
        compiled = self.compiled  # `start` has checked that it is current
        if isinstance(state, ConvS2SState):
            folded = compiled.model if runs_plan(self.model.output_bias) else None
            return (folded or self.model).step(token, state, memory, record=record)
        model, tap_weight = compiled.model, compiled.tap_weight
        if model is None or tap_weight is None:
            raise RuntimeError("the model has changed since this state was started: start again")
        distinct, inverse = torch.unique(token, return_inverse=True)
        embedded = model.target_embedding(distinct[:, None], state.position).squeeze(1)  # (V, E)
        x = model.target_width(embedded)  # (V, D)
        products = linear(x, tap_weight)  # (V, kernel·2D)
        products, x, embedded = (part.index_select(0, inverse) for part in (products, x, embedded))  # (N, ·)
        first, *others = model.decoder_layers()
        convolved, sums = add_products(products, state.sums, first.convolution)
        h = bias_glu(convolved, first.convolution.projection.bias)
        x, first_weights = first.attend_step(x, h, embedded, memory)
        x, weights, caches = step_layers(others, x, embedded, state.caches, memory)
        attention = records([first_weights, *weights]) if record else ()
        return Step(model.finish(x), PlanState(state.position + 1, sums, caches), attention)

    def logits(self, outputs: Tensor) -> Tensor:
        """As the model's."""
        return self.model.logits(outputs)

    def output_product(self, outputs: Tensor) -> Product:
        """As the model's."""
        return self.model.output_product(outputs)


def runs_plan(weight: Tensor) -> bool:
    """Whether a plan may run: without gradients, and not under autocast, which casts weights that a plan has kept."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled(weight.device.type)


def normalised_copy(model: ConvS2S) -> ConvS2S:
    """A copy of a model with normalised weights in the place of directions and scales; all other tensors are shared."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    found = copy.deepcopy(model, memo)
    for part in found.modules():
        if isinstance(part, Projection) and part.scale is not None:
            with torch.no_grad():
                part.direction = nn.Parameter(part.weight(), requires_grad=False)
            part.scale = None
    return found


def tap_weight(convolution: Convolution) -> Tensor:
    """The weight of a convolution as a map (kernel·outputs, inputs) from one input to its products with all taps.

    Products come in the order of the taps: those of the first tap belong to the latest output.
    """
    weight = convolution.projection.weight().detach()
    if convolution.depthwise is None:
        return weight.view(len(weight), convolution.kernel, -1).transpose(0, 1).flatten(0, 1)
    return (convolution.depthwise.detach()[:, None] * weight).flatten(0, 1)


def add_products(products: Tensor, sums: PartialSums, convolution: Convolution) -> tuple[Tensor, PartialSums]:
    """The convolution (N, outputs) at a new position without its bias, and the partial sums of the later outputs.

    The products (N, kernel·outputs) are those of the new input with all taps.
    """
    latest, *others = products.chunk(convolution.kernel, 1)
    added = [*sums, latest]
    for number, product in enumerate(reversed(others)):
        added[number * convolution.dilation] = added[number * convolution.dilation] + product
    now, *later = added
    return now, tuple(later)
