"""The one interface of all models: encode into a memory, decode step by step, attend at every step.

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
    """How many ids each side has, and whether they are the same ids."""

    source: int
    target: int
    joint: bool = False


@dataclass(frozen=True)
class Source:
    """What is encoded: ids, an image grid, audio frames, or several sources at once."""

    values: Tensor | tuple[Source, ...]
    mask: Tensor  # (B, S), True = real


@dataclass(frozen=True)
class Attention:
    """Where one layer looked: rows are queries, columns are keys, each row sums to 1."""

    kind: AttentionKind
    layer: int
    weights: Tensor  # (B, H, T, S)


@dataclass(frozen=True)
class Auxiliary:
    """What a model asks of a batch beyond the objective, such as that its experts share the work evenly."""

    loss: Tensor  # a scalar, a mean over tokens like the objective's; its weight is in it
    sums: Mapping[str, Tensor]  # scalars to report, sums over the batch


@dataclass(frozen=True)
class Memory:
    """The encoder's output; a decoder attends to it."""

    states: Tensor  # (B, S, D)
    mask: Tensor  # (B, S), True = real
    summary: Any = None  # any nesting of batch-first tensors; may start a recurrent decoder
    attention: tuple[Attention, ...] = ()  # filled when the encoder was asked to record
    auxiliary: Auxiliary | None = None  # in training only


@dataclass(frozen=True)
class Decoded:
    """All positions of a target at once."""

    outputs: Tensor  # (B, T, D), without a meaning where the prefix is padding
    attention: tuple[Attention, ...] = field(default=())
    auxiliary: Auxiliary | None = None  # in training only


class Product(NamedTuple):
    """The product that ends an output layer: logits = rows · table^T + bias."""

    rows: Tensor  # (..., E)
    table: Tensor  # (V, E)
    bias: Tensor | None  # (V,)


class Step(NamedTuple):
    """One position of a target, for N = B·W hypotheses."""

    output: Tensor  # (N, D)
    state: Any  # any nesting of batch-first tensors
    attention: tuple[Attention, ...] = ()  # weights (N, H, 1, keys)


@runtime_checkable
class Encodes(Protocol):
    """A model that turns a source into a memory."""

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode a batch; `record` takes the explicit path and keeps the attention."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """A model that writes a target while it attends to a memory."""

    longest: int | None  # the most places it can decode; None: any number

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Run all positions of `prefix` (B, T) at once: training, scoring, explaining."""
        ...

    def start(self, memory: Memory) -> Any:
        """The state before the first token; key/value caches and projected keys live in it.

        What depends on the memory alone is wrapped in `OfMemory`.
        """
        ...

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        """Read one token (N,), go one position on.

        N = B·W: each row of the memory serves W hypotheses, which stand side by side; so do the parts `OfMemory`.
        """
        ...

    def logits(self, outputs: Tensor) -> Tensor:
        """The output layer: (..., D) to (..., V)."""
        ...

    def output_product(self, outputs: Tensor) -> Product | None:
        """The output layer of (..., D) up to its last product, or None if it does not end in one.

        A loss then never holds all logits at once, and adds up the gradient of the table in place.
        """
        ...


class Translates(Encodes, Decodes, Protocol):
    """Both: what a sequence-to-sequence model is."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """What an optimizer updates."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch dropout and the like on."""
        ...

    def eval(self) -> Any:
        """Switch them off."""
        ...


S = TypeVar("S")
T = TypeVar("T")


class OfMemory(NamedTuple, Generic[T]):
    """A part of a state that depends on the memory alone: projected keys, say.

    It has a row for each row of the memory, however many hypotheses share it; reordering them does not copy it.
    """

    value: T


class Shared(NamedTuple, Generic[T]):
    """A part of a state that its other parts point into: it has no row for each hypothesis, reordering leaves it."""

    value: T


def select(state: S, rows: Tensor) -> S:
    """The given rows of any nesting of batch-first tensors."""
    return cast(S, rows_of(state, rows, lambda part: OfMemory(select(part.value, rows))))


def reorder(state: S, rows: Tensor, memory_rows: Tensor | None) -> S:
    """The given hypotheses (N',) of a state, and the given rows of the memory they belong to; None keeps all of those.

    Beam search reorders every model's state with it.
    """
    if memory_rows is None:
        return cast(S, rows_of(state, rows, lambda part: part))
    return cast(S, rows_of(state, rows, lambda part: OfMemory(select(part.value, memory_rows))))


def rows_of(state: Any, rows: Tensor, of_memory: Callable[[OfMemory[Any]], OfMemory[Any]]) -> Any:
    """The given rows of all tensors in a state; what depends on the memory is left to the caller."""
    if state is None or isinstance(state, str | int | float | bool):
        return state
    if isinstance(state, Auxiliary):
        return None  # it belongs to the whole batch
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, Shared):
        return state
    if isinstance(state, OfMemory):
        return of_memory(state)
    if isinstance(state, dict):
        return {key: rows_of(value, rows, of_memory) for key, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(rows_of(part, rows, of_memory) for part in state))
    if isinstance(state, tuple | list):
        return type(state)(rows_of(part, rows, of_memory) for part in state)
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        changes = {f.name: rows_of(getattr(state, f.name), rows, of_memory) for f in dataclasses.fields(state)}
        return dataclasses.replace(state, **changes)
    raise TypeError(f"a state holds tensors in tuples, lists, dicts and dataclasses, not {type(state).__name__}")
