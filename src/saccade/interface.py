"""The one interface of all models: encode into a memory, decode step by step, attend at every step.

Shapes: B batch, S source positions, T target positions, H heads, D model width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

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
class Memory:
    """The encoder's output; a decoder attends to it."""

    states: Tensor  # (B, S, D)
    mask: Tensor  # (B, S), True = real
    summary: Any = None  # any nesting of batch-first tensors; may start a recurrent decoder
    attention: tuple[Attention, ...] = ()  # filled when the encoder was asked to record


@dataclass(frozen=True)
class Decoded:
    """All positions of a target at once."""

    outputs: Tensor  # (B, T, D)
    attention: tuple[Attention, ...] = field(default=())


class Step(NamedTuple):
    """One position of a target."""

    output: Tensor  # (B, D)
    state: Any  # any nesting of batch-first tensors
    attention: tuple[Attention, ...] = ()  # weights (B, H, 1, keys)


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
        """The state before the first token; key/value caches and projected keys live in it."""
        ...

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        """Read one token (B,), go one position on."""
        ...

    def logits(self, outputs: Tensor) -> Tensor:
        """The output layer: (..., D) to (..., V)."""
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


def select(state: S, rows: Tensor) -> S:
    """The given rows of any nesting of batch-first tensors; beam search reorders every model's state with it."""
    result: Any
    if state is None or isinstance(state, str | int | float | bool):
        result = state
    elif isinstance(state, Tensor):
        result = state.index_select(0, rows)
    elif isinstance(state, dict):
        result = {key: select(value, rows) for key, value in state.items()}
    elif isinstance(state, tuple) and hasattr(state, "_fields"):
        result = type(state)(*(select(part, rows) for part in state))
    elif isinstance(state, tuple | list):
        result = type(state)(select(part, rows) for part in state)
    elif dataclasses.is_dataclass(state) and not isinstance(state, type):
        changes = {f.name: select(getattr(state, f.name), rows) for f in dataclasses.fields(state)}
        result = dataclasses.replace(state, **changes)
    else:
        raise TypeError(f"a state holds tensors in tuples, lists, dicts and dataclasses, not {type(state).__name__}")
    return cast(S, result)
