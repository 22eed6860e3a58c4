"""LSTM and GRU cells: the next state from the pre-activations of the gates.

    LSTM    i, f, g, o = σ, σ, tanh, σ of (W x + U h + b);  c' = f∘c + i∘g;  h' = o∘tanh(c')
    GRU     r, z = σ of (W x + U h + b);  n = tanh(W x + b + r∘(U h + b'));  h' = (1-z)∘n + z∘h

The GRU is PyTorch's: the reset gate r acts after the product with U, not before it as in Cho et al. 2014, eq. 8, so
that one matrix product gives all three parts. The kernels have no backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from saccade.ops.arguments import (
    address,
    require_indices,
    require_integers,
    require_same_dtype_and_device,
    require_shape,
    row_address,
)
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.kernel_abi import RecurrentGates
from saccade.ops.kernel_library import kernel

CellKind = Literal["lstm", "gru"]
GATES: dict[CellKind, int] = {"lstm": 4, "gru": 3}


class RecurrentState(NamedTuple):
    """The state of a recurrent layer."""

    hidden: Tensor  # (B, H), also the output
    cell: Tensor | None  # (B, H) of an LSTM; None for a GRU

    def map(self, function: Callable[[Tensor], Tensor]) -> RecurrentState:
        """Apply a function to the hidden state, and to the cell if there is one."""
        return RecurrentState(function(self.hidden), None if self.cell is None else function(self.cell))


def recurrent_cell(
    state: RecurrentState,
    inputs: Tensor,
    recurrent: Tensor,
    *,
    step_input: Tensor | None = None,
    input_bias: Tensor | None = None,
    recurrent_bias: Tensor | None = None,
) -> RecurrentState:
    """The next state (B, H) from the projections (B, G·H) of the input, the state and a second input, `step_input`.

    Gates are in the order i, f, g, o (LSTM) or r, z, n (GRU); biases (G·H,) are added here.
    """
    op = "recurrent_cell"
    require_shape(op, "hidden", state.hidden, None, None)
    batch, width = state.hidden.shape
    gates = width * (GATES["gru"] if state.cell is None else GATES["lstm"])
    tensors = {
        "inputs": inputs,
        "recurrent": recurrent,
        "step_input": step_input,
        "cell": state.cell,
        "hidden": state.hidden,
    }
    require_same_dtype_and_device(op, **tensors, input_bias=input_bias, recurrent_bias=recurrent_bias)
    for name, x in tensors.items():
        if x is not None:
            require_shape(op, name, x, batch, width if name in ("cell", "hidden") else gates)
    for name, bias in (("input_bias", input_bias), ("recurrent_bias", recurrent_bias)):
        if bias is not None:
            require_shape(op, name, bias, gates)
    if width and runs_on_inference_kernel(inputs):
        return cell_kernel(state, inputs, recurrent, step_input, input_bias, recurrent_bias)
    inputs = inputs if step_input is None else inputs + step_input
    inputs = inputs if input_bias is None else inputs + input_bias
    recurrent = recurrent if recurrent_bias is None else recurrent + recurrent_bias
    if state.cell is None:
        return gru_state(inputs, recurrent, state.hidden)
    return lstm_state(inputs + recurrent, state.cell)


def cell_kernel(
    state: RecurrentState,
    inputs: Tensor,
    recurrent: Tensor,
    step_input: Tensor | None,
    input_bias: Tensor | None,
    recurrent_bias: Tensor | None,
) -> RecurrentState:
    """`recurrent_cell` on the kernel, for arguments that are checked."""
    columns = [
        None if x is None else x.contiguous() for x in (inputs, step_input, recurrent, input_bias, recurrent_bias)
    ]
    before = state.map(Tensor.contiguous)
    after = before.map(torch.empty_like)
    advance(RecurrentGates(*map(address, columns), None, None, None, 0), before, after)
    return after


def scan(
    kind: CellKind,
    inputs: Tensor,
    weight: Tensor,
    input_bias: Tensor,
    recurrent_bias: Tensor,
    rows: Tensor,
    order: Tensor,
    out: Tensor,
) -> RecurrentState:
    """Run a recurrent layer over sequences, inference only; return the last state and write the outputs to `out`.

    inputs (R, G·H) are the input projections; sequence b has inputs[rows[b, s]] at position s. `order` (B, S)
    lists the positions of a sequence in the order of the recurrence, -1 after the last. weight (G·H, H) is the
    recurrent weight. `out` (B, S, H) may be a slice of a wider tensor.
    """
    op = "scan"
    require_same_dtype_and_device(
        op, inputs=inputs, weight=weight, input_bias=input_bias, recurrent_bias=recurrent_bias, out=out
    )
    require_shape(op, "weight", weight, None, None)
    gates, width = weight.shape
    require_shape(op, "weight", weight, GATES[kind] * width, width)
    require_shape(op, "inputs", inputs, None, gates)
    for name, bias in (("input_bias", input_bias), ("recurrent_bias", recurrent_bias)):
        require_shape(op, name, bias, gates)
    require_shape(op, "order", order, None, None)
    require_shape(op, "rows", rows, *order.shape)
    require_shape(op, "out", out, *order.shape, width)
    if any(size > 1 and not stride for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise ValueError(f"{op}: the positions of out share memory")
    require_integers(op, out.device, order=order)
    require_indices(op, "rows", rows, len(inputs), device=out.device)
    require_indices(op, "order", order + 1, order.size(1) + 1, device=out.device)
    zeros = weight.new_zeros(len(order), width)
    state = RecurrentState(zeros, zeros if kind == "lstm" else None)
    if not runs_on_inference_kernel(inputs) or out.stride(2) != 1 or out.stride(0) != order.size(1) * out.stride(1):
        return scan_reference(state, inputs, weight, input_bias, recurrent_bias, rows, order, out)
    inputs, input_bias, recurrent_bias = (x.contiguous() for x in (inputs, input_bias, recurrent_bias))
    real, first = order >= 0, torch.arange(len(order), device=order.device)[:, None] * order.size(1)
    input_rows = torch.where(real, rows.gather(1, order.clamp(min=0)), -1).T.contiguous()  # (S, B)
    output_rows = (first + order).T.contiguous()  # (S, B)
    state = state.map(Tensor.clone)  # it is overwritten
    recurrent = weight.new_empty(len(order), gates)
    projections = RecurrentGates(
        *map(address, (inputs, None, recurrent, input_bias, recurrent_bias)),
        None,
        None,
        row_address(out),
        out.stride(1),
    )
    for position in range(order.size(1)):
        torch.mm(state.hidden, weight.T, out=recurrent)
        projections.input_rows = address(input_rows[position])
        projections.output_rows = address(output_rows[position])
        advance(projections, state, state)
    return state


def scan_reference(
    state: RecurrentState,
    inputs: Tensor,
    weight: Tensor,
    input_bias: Tensor,
    recurrent_bias: Tensor,
    rows: Tensor,
    order: Tensor,
    out: Tensor,
) -> RecurrentState:
    """The PyTorch reference of `scan`."""
    sequences = torch.arange(len(order), device=order.device)
    for position in range(order.size(1)):
        at = order[:, position]
        real, own = at >= 0, inputs[rows.gather(1, at.clamp(min=0)[:, None]).squeeze(1)] + input_bias  # (B,), (B, G·H)
        recurrent = state.hidden @ weight.T + recurrent_bias
        if state.cell is None:
            after = gru_state(own, recurrent, state.hidden)
        else:
            after = lstm_state(own + recurrent, state.cell)
        hidden = torch.where(real[:, None], after.hidden, state.hidden)
        cell = (
            after.cell
            if state.cell is None or after.cell is None
            else torch.where(real[:, None], after.cell, state.cell)
        )
        state = RecurrentState(hidden, cell)
        out[sequences[real], at[real]] = state.hidden[real]
    return state


def advance(projections: RecurrentGates, before: RecurrentState, after: RecurrentState) -> None:
    """Run one step on the kernel; in place if `before` and `after` are the same tensors."""
    parts = (address(part) for part in (*before, *after) if part is not None)
    kernel("gru_cell" if before.cell is None else "lstm_cell", *before.hidden.shape, byref(projections), *parts)


def lstm_state(gates: Tensor, cell: Tensor) -> RecurrentState:
    """The next state from pre-activations (B, 4H), in the order i, f, g, o, and the cell (B, H)."""
    input_gate, forget_gate, new, output_gate = gates.chunk(4, -1)
    cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(new)
    return RecurrentState(torch.sigmoid(output_gate) * torch.tanh(cell), cell)


def gru_state(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> RecurrentState:
    """The next state from the projections of input and state (B, 3H), in the order r, z, n, and the state (B, H)."""
    width = hidden.size(-1)
    reset, update = torch.sigmoid(inputs[:, : 2 * width] + recurrent[:, : 2 * width]).chunk(2, -1)
    new = torch.tanh(torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]))
    return RecurrentState(new + update * (hidden - new), None)
