"""Int8 weights of a complete model, for inference on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from saccade.interface import Decoded, EncoderDecoder, Memory, OutputProjection, Source, Step
from saccade.ops.int8_linear import QuantizedParameter, quantizable
from saccade.plans.fingerprint import Fingerprint

Model = TypeVar("Model", bound=nn.Module)


def quantized_copy(model: Model, exclude: Iterable[Tensor] = ()) -> Model:
    """Return a copy of a model that shares its tensors and adds an int8 copy of every weight matrix.

    A parameter that several modules share stays shared. The float32 values are kept for embedding lookups.
    """
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    excluded = set(map(id, exclude))
    for parameter in model.parameters():
        matrix = id(parameter) not in excluded and quantizable(parameter.detach())
        memo[id(parameter)] = QuantizedParameter.of(parameter) if matrix else parameter
    return copy.deepcopy(model, memo)


class Quantized(NamedTuple):
    """The quantized copy of a model."""

    fingerprint: Fingerprint  # of the model when it was quantized
    model: Any


class QuantizedPlan:
    """Inference of any model with int8 weights; the weights are quantized again when they change.

    `encode`, `decode` and `start` check whether the weights have changed and quantize again if so; `step` and `logits`
    use the most recent int8 weights without a check.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model
        self.quantized = self.compile()

    def compile(self) -> Quantized:
        """Quantize the weights of the model."""
        assert isinstance(self.model, nn.Module)
        return Quantized(Fingerprint(self.model), quantized_copy(self.model))

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedPlan:
        """The plan of a copy of the model."""
        return QuantizedPlan(copy.deepcopy(self.model, memo))

    def current(self) -> EncoderDecoder:
        """Return the quantized model, or the model itself with gradients enabled: int8 weights have no gradient."""
        if torch.is_grad_enabled():
            return self.model
        quantized = self.quantized
        if not quantized.fingerprint.matches():
            quantized = self.quantized = self.compile()
        return quantized.model  # type: ignore[no-any-return]

    def without_check(self) -> Any:
        """Return the quantized model like `current`, but without the fingerprint check, which `start` has made."""
        return self.model if torch.is_grad_enabled() else self.quantized.model

    @property
    def max_target_positions(self) -> int | None:
        """The maximum number of target positions of the model."""
        return self.model.max_target_positions

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode a source with int8 weights."""
        return self.current().encode(source, record=record)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode a prefix with int8 weights."""
        return self.current().decode(prefix, memory, record=record)

    def start(self, memory: Memory) -> Any:
        """Return the decoder state before the first token."""
        return self.current().start(memory)

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position with int8 weights."""
        return self.without_check().step(token, state, memory, record=record)  # type: ignore[no-any-return]

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the output layer, with int8 weights."""
        return self.without_check().logits(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection | None:
        """Return the operands of the last linear layer."""
        return self.without_check().output_projection(outputs)  # type: ignore[no-any-return]
