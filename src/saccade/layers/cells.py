"""One place of a recurrent layer: the next state from what the input and the last state give to the gates.

    LSTM    i, f, g, o = σ, σ, tanh, σ of (W x + U h + b);  c' = f∘c + i∘g;  h' = o∘tanh(c')
    GRU     r, z = σ of (W x + U h + b);  n = tanh(W x + b + r∘(U h + b'));  h' = (1-z)∘n + z∘h

The GRU is the library's: the reset gate r acts after the product with U, not before it as in Cho et al., eq. 8, so that
one product makes all three parts.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from saccade.csrc.abi import Shares
from saccade.csrc.library import expect, kernel

CellKind = Literal["lstm", "gru"]
GATES: dict[CellKind, int] = {"lstm": 4, "gru": 3}


class RecurrentState(NamedTuple):
    """What a layer hands from one place to the next."""

    hidden: Tensor  # (B, H), its output too
    cell: Tensor | None  # (B, H) of an LSTM; a GRU has none


def each_part(state: RecurrentState, function: Callable[[Tensor], Tensor]) -> RecurrentState:
    """The function of the hidden state, and of the cell if there is one."""
    return RecurrentState(function(state.hidden), None if state.cell is None else function(state.cell))


def lstm_state(gates: Tensor, cell: Tensor) -> RecurrentState:
    """The next state from the four gates' sums (B, 4H), in the order i, f, g, o, and the cell (B, H)."""
    write, keep, new, read = gates.chunk(4, -1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(new)
    return RecurrentState(torch.sigmoid(read) * torch.tanh(cell), cell)


def gru_state(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> RecurrentState:
    """The next state from the input's and the state's shares (B, 3H), in the order r, z, n, and the state (B, H)."""
    width = hidden.size(-1)
    reset, update = torch.sigmoid(inputs[:, : 2 * width] + recurrent[:, : 2 * width]).chunk(2, -1)
    new = torch.tanh(torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]))
    return RecurrentState(new + update * (hidden - new), None)


def state_after(
    state: RecurrentState,
    inputs: Tensor,
    recurrent: Tensor,
    *,
    fed: Tensor | None = None,
    input_bias: Tensor | None = None,
    recurrent_bias: Tensor | None = None,
) -> RecurrentState:
    """The next state on the kernels, in one pass: the shares (B, G·H) have no bias yet, those of the input may."""
    rows, width = state.hidden.shape
    shape = rows, (GATES["gru"] if state.cell is None else GATES["lstm"]) * width
    inputs, recurrent = expect(inputs, *shape), expect(recurrent, *shape)
    fed = None if fed is None else expect(fed, *shape)
    shares = Shares.of(inputs, recurrent, fed=fed, input_bias=input_bias, recurrent_bias=recurrent_bias)
    before = each_part(state, lambda part: expect(part, rows, width))
    after = each_part(before, torch.empty_like)
    advance(shares, before, after)
    return after


def advance(shares: Shares, before: RecurrentState, after: RecurrentState) -> None:
    """Write the state after one place; in place if they are the same."""
    parts = (part.data_ptr() for part in (*before, *after) if part is not None)
    kernel("gru_cell" if before.cell is None else "lstm_cell", *before.hidden.shape, byref(shares), *parts)
