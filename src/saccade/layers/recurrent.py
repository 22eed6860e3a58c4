"""Recurrent layers: LSTM (Hochreiter and Schmidhuber 1997) and GRU (Cho et al. 2014), over a sequence or step by step.

Real positions come before padding, so padding does not change their outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from saccade.ops.recurrent_cells import GATES, CellKind, RecurrentState
from saccade.ops.recurrent_layer import (
    RecurrentWeights,
    bidirectional_layer,
    flat_indices,
    last,
    recurrent_layer,
    recurrent_step,
    reverse,
    two_input_recurrent_step,
)

__all__ = ["Bidirectional", "Recurrent", "TwoInputRecurrent", "last", "masked_mean", "recurrent_stack", "reverse"]


class Recurrent(nn.Module):
    """One recurrent layer in one direction."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, width, batch_first=True)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """x (B, T, inputs) to outputs (B, T, H), and the state after the last real position of each sequence.

        `mask` is True at real positions.
        """
        return recurrent_layer(self.layer, x, mask, state)

    def step(self, x: Tensor, state: RecurrentState) -> RecurrentState:
        """One position: x (B, inputs)."""
        return recurrent_step(self.layer, x, state)

    def empty(self, like: Tensor) -> RecurrentState:
        """The zero state before the first position, for a batch like `like` (B, ...)."""
        return zero_state(self.kind, like.size(0), RecurrentWeights.of(self.layer).recurrent)


class Bidirectional(nn.Module):
    """A forward and a backward layer over one sequence; their outputs are concatenated."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.forwards = Recurrent(kind, inputs, width)
        self.backwards = Recurrent(kind, inputs, width)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """x (B, S, inputs) to outputs (B, S, 2H), forward first, and the last state of each direction.

        `mask` is True at real positions.
        """
        return bidirectional_layer(self.forwards.layer, self.backwards.layer, x.flatten(0, 1), flat_indices(mask), mask)

    def of_tokens(
        self, embed: Callable[[Tensor], Tensor], tokens: Tensor, mask: Tensor
    ) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """`forward` of `embed(tokens)`, tokens (B, S), where an embedding depends on its token alone.

        A batch has few distinct tokens: in evaluation each is embedded and projected once.
        `mask` is True at real positions.
        """
        if self.training or torch.is_grad_enabled() or not mask.any():
            return self(embed(tokens), mask)  # type: ignore[no-any-return]
        distinct, rows = torch.unique(tokens[mask], return_inverse=True)
        rows = torch.zeros_like(tokens).masked_scatter(mask, rows)
        return bidirectional_layer(self.forwards.layer, self.backwards.layer, embed(distinct), rows, mask)

    def outputs(self, x: Tensor, mask: Tensor) -> Tensor:
        """The outputs alone (B, S, 2H): without last states the layers can run over padding.

        `mask` is True at real positions.
        """
        forward, _ = self.forwards(x)
        backward, _ = self.backwards(reverse(x, mask))
        return torch.cat([forward, reverse(backward, mask)], -1)


class TwoInputRecurrent(nn.Module):
    """One recurrent layer with two inputs: one known for all positions in advance, one computed at each step.

    The known input (embeddings) is projected for all positions by one matrix product; the step input (a context, the
    last output) is projected at its step.
    """

    def __init__(self, kind: CellKind, inputs: int, step_input: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = width
        gates = GATES[kind] * width
        self.input = nn.Linear(inputs, gates)
        self.step_input = nn.Linear(step_input, gates, bias=False)
        self.hidden = nn.Linear(width, gates, bias=kind == "gru")  # an LSTM has one bias, a GRU two
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)  # as PyTorch's own layers

    def project(self, x: Tensor) -> Tensor:
        """Project the known input (..., inputs) to the gates (..., G·H)."""
        return self.input(x)  # type: ignore[no-any-return]

    def forward(self, projected: Tensor, step_input: Tensor, state: RecurrentState) -> RecurrentState:
        """One position: projected (B, G·H), step_input (B, F)."""
        return two_input_recurrent_step(
            projected, step_input, state, self.step_input.weight, self.hidden.weight, self.hidden.bias
        )

    def empty(self, like: Tensor) -> RecurrentState:
        """The zero state before the first position, for a batch like `like` (B, ...)."""
        return zero_state(self.kind, like.size(0), self.hidden.weight)


def recurrent_stack(
    layers: Iterable[nn.Module], x: Tensor, mask: Tensor, apply_dropout: Callable[[Tensor], Tensor]
) -> tuple[Tensor, tuple[RecurrentState, ...]]:
    """Run `Recurrent` layers in turn: x (B, S, inputs) to outputs (B, S, H) and the last state of every layer.

    `mask` is True at real positions.
    """
    states: list[RecurrentState] = []
    for layer in layers:
        x, state = layer(x, mask)
        x = apply_dropout(x)
        states.append(state)
    return x, tuple(states)


def zero_state(kind: CellKind, batch: int, weight: Tensor) -> RecurrentState:
    """A state of zeros with the dtype of a recurrent weight (G·H, H)."""
    zeros = weight.new_zeros(batch, weight.size(1))
    return RecurrentState(zeros, zeros if kind == "lstm" else None)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real positions of each sequence of x (B, S, D): (B, D); mask: True = real position."""
    real = mask[:, :, None]
    return x.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
