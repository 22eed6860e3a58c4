"""The interface of all models: encode a source into a memory, decode with attention to it, at once or step by step.

Shapes: B batch, S source positions, T target positions, H heads, D model width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from torch import Tensor, nn

AttentionKind = Literal["encoder-self", "decoder-self", "cross"]


@dataclass(frozen=True)
class VocabularySizes:
    """Vocabulary sizes of source and target; `joint` if both sides share one vocabulary."""

    source: int
    target: int
    joint: bool = False


@dataclass(frozen=True)
class Source:
    """The input of an encoder: ids, an image grid, audio frames, or a tuple of sources."""

    values: Tensor | tuple[Source, ...]
    mask: Tensor  # (B, S), True = real position, False = padding


@dataclass(frozen=True)
class Attention:
    """Attention weights of one layer: rows are queries, columns are keys, each row sums to 1."""

    kind: AttentionKind
    layer: int
    weights: Tensor  # (B, H, T, S)


@dataclass(frozen=True)
class Auxiliary:
    """An auxiliary loss of a model, such as the load balance of its experts."""

    loss: Tensor  # a scalar, weighted; a mean over tokens like the objective's loss
    sums: Mapping[str, Tensor]  # scalars to log, sums over the batch


@dataclass(frozen=True)
class Memory:
    """The output of an encoder, which a decoder attends to."""

    states: Tensor  # (B, S, D)
    mask: Tensor  # (B, S), True = real position, False = padding
    extra: Any = None  # any nesting of batch-first tensors, such as the last states of a recurrent encoder
    attention: tuple[Attention, ...] = ()  # empty unless recorded
    auxiliary: Auxiliary | None = None  # in training only


@dataclass(frozen=True)
class Decoded:
    """The output of a decoder for all target positions at once."""

    outputs: Tensor  # (B, T, D), undefined at padding positions of the prefix
    attention: tuple[Attention, ...] = field(default=())
    auxiliary: Auxiliary | None = None  # in training only


class OutputProjection(NamedTuple):
    """The last matrix product of an output layer: logits = inputs · weight^T + bias."""

    inputs: Tensor  # (..., E)
    weight: Tensor  # (V, E)
    bias: Tensor | None  # (V,)


class Step(NamedTuple):
    """The output of a decoder for one position of N = B·W hypotheses."""

    output: Tensor  # (N, D)
    state: Any  # any nesting of batch-first tensors
    attention: tuple[Attention, ...] = ()  # weights (N, H, 1, keys)


@runtime_checkable
class Encoder(Protocol):
    """An encoder: a model that turns a source into a memory."""

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode a batch; with `record`, attention weights are returned too."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """A decoder: a model that predicts a target from a memory, token by token."""

    max_target_positions: int | None  # maximum number of target positions; None = no maximum

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode all positions of `prefix` (B, T) at once: training, scoring, explaining."""
        ...

    def start(self, memory: Memory) -> Any:
        """Return the decoder state before the first token: KV caches, hidden states, projected keys.

        Parts that depend on the memory alone are wrapped in `PerSentence`.
        """
        ...

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,), N = B·W.

        The W hypotheses of a sentence are consecutive rows and share its row of the memory and of `PerSentence` parts.
        """
        ...

    def logits(self, outputs: Tensor) -> Tensor:
        """Apply the output layer: (..., D) to (..., V)."""
        ...

    def output_projection(self, outputs: Tensor) -> OutputProjection | None:
        """Return the operands of the last matrix product of `logits` for outputs (..., D); None if there is none.

        With it a loss can be computed chunk by chunk, without all logits at once.
        """
        ...


class EncoderDecoder(Encoder, Decoder, Protocol):
    """A sequence-to-sequence model, or the plan of one: an encoder and a decoder."""


class TranslationModel(EncoderDecoder, Protocol):
    """A sequence-to-sequence model: an `nn.Module`, which a plan is not."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the parameters, as in `nn.Module`."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Set the training mode, as in `nn.Module`."""
        ...

    def eval(self) -> Any:
        """Set the evaluation mode, as in `nn.Module`."""
        ...


S = TypeVar("S")
T = TypeVar("T")


class PerSentence(NamedTuple, Generic[T]):
    """A part of a decoder state that depends on the memory alone, such as projected keys.

    It has one row per sentence, which all hypotheses of the sentence share: reordering hypotheses does not copy it.
    """

    value: T


class Shared(NamedTuple, Generic[T]):
    """A part of a decoder state that other parts index into; not batch-first, and unchanged by reordering."""

    value: T


def select(state: S, rows: Tensor) -> S:
    """Select indices `rows` along the batch dimension of any nesting of batch-first tensors."""
    return cast(S, select_parts(state, rows, lambda part: PerSentence(select(part.value, rows))))


def reorder(state: S, rows: Tensor, memory_rows: Tensor | None) -> S:
    """Select hypotheses `rows` (N',) of a decoder state, and sentences `memory_rows` of its `PerSentence` parts.

    Beam search calls it between steps. If `memory_rows` is None, the `PerSentence` parts are unchanged.
    """
    if memory_rows is None:
        return cast(S, select_parts(state, rows, lambda part: part))
    return cast(S, select_parts(state, rows, lambda part: PerSentence(select(part.value, memory_rows))))


def select_parts(state: Any, rows: Tensor, per_sentence: Callable[[PerSentence[Any]], PerSentence[Any]]) -> Any:
    """Select indices `rows` along the batch dimension of a state; `per_sentence` converts its `PerSentence` parts."""
    if state is None or isinstance(state, str | int | float | bool):
        return state
    if isinstance(state, Auxiliary):
        return None  # a loss of the complete batch
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, Shared):
        return state
    if isinstance(state, PerSentence):
        return per_sentence(state)
    if isinstance(state, dict):
        return {key: select_parts(value, rows, per_sentence) for key, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(select_parts(part, rows, per_sentence) for part in state))
    if isinstance(state, tuple | list):
        return type(state)(select_parts(part, rows, per_sentence) for part in state)
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        changes = {f.name: select_parts(getattr(state, f.name), rows, per_sentence) for f in dataclasses.fields(state)}
        return dataclasses.replace(state, **changes)
    raise TypeError(f"a state holds tensors in tuples, lists, dicts and dataclasses, not {type(state).__name__}")
