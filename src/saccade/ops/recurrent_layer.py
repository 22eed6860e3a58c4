"""Recurrent layers over sequences and for one step: PyTorch's fused layers, or the cell kernels without gradients.

The kernels fuse the gates of a step, write both directions into one tensor, and project repeated inputs once.
Weights are those of `nn.LSTM` and `nn.GRU` with one layer: W (G·H, inputs), U (G·H, H) and their biases (G·H,).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.ops.arguments import require_indices, require_mask, require_same_dtype_and_device, require_shape
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.linear import linear
from saccade.ops.recurrent_cells import GATES, CellKind, RecurrentState, cell_kernel, gru_state, lstm_state, scan


class RecurrentWeights(NamedTuple):
    """The weights of one recurrent layer."""

    input: Tensor  # W (G·H, inputs)
    recurrent: Tensor  # U (G·H, H)
    input_bias: Tensor  # (G·H,)
    recurrent_bias: Tensor  # (G·H,)

    @classmethod
    def of(cls, layer: nn.RNNBase) -> RecurrentWeights:
        """The weights of `nn.LSTM` or `nn.GRU` with one layer."""
        return cls(*(getattr(layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")))


def kind_of(layer: nn.RNNBase) -> CellKind:
    """The cell kind of `nn.LSTM` or `nn.GRU`."""
    return "lstm" if isinstance(layer, nn.LSTM) else "gru"


def recurrent_layer(
    layer: nn.RNNBase, x: Tensor, mask: Tensor | None = None, state: RecurrentState | None = None
) -> tuple[Tensor, RecurrentState]:
    """x (B, T, inputs) to all outputs (B, T, H), and the state after the last real position of each sequence.

    Real positions come before padding, where outputs are arbitrary. The layer runs in the dtype of its weights, without
    autocast: fused GPU layers support only half precision under autocast.
    `mask` is True at real positions.
    """
    op = "recurrent_layer"
    weights = check_layer(op, layer, x, state)
    require_shape(op, "x", x, None, None, layer.input_size)
    if not x.size(1):
        raise ValueError(f"{op}: x has no positions")
    if mask is not None:
        require_mask(op, mask, *x.shape[:2], device=x.device)
    if state is not None:
        check_state(op, layer, state, x.size(0))
    if mask is not None and state is None and runs_on_inference_kernel(x):
        outputs = x.new_zeros(*mask.shape, layer.hidden_size)
        return outputs, scan_layer(layer, x.flatten(0, 1), flat_indices(mask), forward_order(mask), outputs)
    with torch.autocast(x.device.type, enabled=False):
        return run_layer(layer, x.to(weights.input.dtype), mask, state)


def bidirectional_layer(
    forward: nn.RNNBase, backward: nn.RNNBase, x: Tensor, rows: Tensor, mask: Tensor
) -> tuple[Tensor, RecurrentState, RecurrentState]:
    """A forward and a backward layer over one sequence: outputs (B, S, 2H), forward first, and the last state of each.

    Position s of sequence b has the input x[rows[b, s]], x (R, inputs): inputs that repeat are projected once.
    `mask` is True at real positions.
    """
    op, width = "bidirectional_layer", forward.hidden_size
    for layer in (forward, backward):
        check_layer(op, layer, x)
    if (kind_of(backward), backward.input_size, backward.hidden_size) != (kind_of(forward), forward.input_size, width):
        raise ValueError(f"{op}: the two layers have different cells or widths")
    require_shape(op, "x", x, None, forward.input_size)
    require_shape(op, "rows", rows, None, None)
    if not rows.size(1):
        raise ValueError(f"{op}: the sequences have no positions")
    require_mask(op, mask, *rows.shape, device=x.device)
    require_indices(op, "rows", rows, len(x), device=x.device)
    if runs_on_inference_kernel(x):
        out = x.new_zeros(*mask.shape, 2 * width)
        end = scan_layer(forward, x, rows, forward_order(mask), out[..., :width])
        return out, end, scan_layer(backward, x, rows, reverse_order(mask), out[..., width:])
    inputs = x.index_select(0, rows.flatten()).view(*rows.shape, x.size(1))
    forward_outputs, end = recurrent_layer(forward, inputs, mask)
    backward_outputs, beginning = recurrent_layer(backward, reverse(inputs, mask), mask)
    return torch.cat([forward_outputs, reverse(backward_outputs, mask)], -1), end, beginning


def recurrent_step(layer: nn.RNNBase, x: Tensor, state: RecurrentState) -> RecurrentState:
    """One position: x (B, inputs)."""
    op = "recurrent_step"
    weights = check_layer(op, layer, x, state)
    require_shape(op, "x", x, None, layer.input_size)
    check_state(op, layer, state, x.size(0))
    if runs_on_inference_kernel(x):
        projections = linear(x, weights.input), linear(state.hidden, weights.recurrent)
        return cell_kernel(state, *projections, None, weights.input_bias, weights.recurrent_bias)
    if state.cell is None:
        return RecurrentState(torch.gru_cell(x, state.hidden, *weights), None)
    return RecurrentState(*torch.lstm_cell(x, [state.hidden, state.cell], *weights))


def two_input_recurrent_step(
    projected: Tensor,
    step_input: Tensor,
    state: RecurrentState,
    step_input_weight: Tensor,
    recurrent_weight: Tensor,
    recurrent_bias: Tensor | None,
) -> RecurrentState:
    """One position of a layer with two inputs: `projected` (B, G·H), with its bias, and step_input (B, F).

    step_input_weight is (G·H, F), recurrent_weight (G·H, H), recurrent_bias (G·H,).
    """
    op, tensors = (
        "two_input_recurrent_step",
        {"step_input": step_input, "projected": projected, "hidden": state.hidden, "cell": state.cell},
    )
    weights = {
        "step_input_weight": step_input_weight,
        "recurrent_weight": recurrent_weight,
        "recurrent_bias": recurrent_bias,
    }
    require_same_dtype_and_device(op, **tensors, **weights)
    require_shape(op, "recurrent_weight", recurrent_weight, None, None)
    gates, width = recurrent_weight.shape
    if gates != width * (GATES["gru"] if state.cell is None else GATES["lstm"]):
        raise ValueError(f"{op}: {gates} gates for a state of width {width}")
    require_shape(op, "step_input", step_input, None, None)
    require_shape(op, "step_input_weight", step_input_weight, gates, step_input.size(1))
    require_shape(op, "projected", projected, step_input.size(0), gates)
    for name, part in (("hidden", state.hidden), ("cell", state.cell)):
        if part is not None:
            require_shape(op, name, part, step_input.size(0), width)
    if recurrent_bias is not None:
        require_shape(op, "recurrent_bias", recurrent_bias, gates)
    if runs_on_inference_kernel(step_input):
        recurrent, step_input_gates = linear(state.hidden, recurrent_weight), linear(step_input, step_input_weight)
        return cell_kernel(state, projected, recurrent, step_input_gates, None, recurrent_bias)
    projections = torch.addmm(projected, step_input, step_input_weight.T)  # (B, G·H)
    if state.cell is None:
        return gru_state(
            projections, nn.functional.linear(state.hidden, recurrent_weight, recurrent_bias), state.hidden
        )
    projections = torch.addmm(projections, state.hidden, recurrent_weight.T)
    return lstm_state(projections if recurrent_bias is None else projections + recurrent_bias, state.cell)


def check_layer(op: str, layer: nn.RNNBase, x: Tensor, state: RecurrentState | None = None) -> RecurrentWeights:
    """Return the weights of one `nn.LSTM` or `nn.GRU` layer; raise unless dtype and device are those of x and state."""
    if not isinstance(layer, nn.LSTM | nn.GRU):
        raise TypeError(f"{op}: {type(layer).__name__} is neither nn.LSTM nor nn.GRU")
    if layer.num_layers != 1 or layer.bidirectional or layer.proj_size or not layer.bias or not layer.batch_first:
        raise ValueError(f"{op}: expected one batch-first layer in one direction with bias and without projection")
    weights, (hidden, cell) = RecurrentWeights.of(layer), (None, None) if state is None else state
    require_same_dtype_and_device(op, x=x, weight=weights.input, hidden=hidden, cell=cell)
    return weights


def check_state(op: str, layer: nn.RNNBase, state: RecurrentState, batch: int) -> None:
    """Raise ValueError unless a state is one of this layer, (batch, H)."""
    if (state.cell is not None) != isinstance(layer, nn.LSTM):
        raise ValueError(f"{op}: {kind_of(layer)} and a state {'without' if state.cell is None else 'with'} cell")
    for name, part in (("hidden", state.hidden), ("cell", state.cell)):
        if part is not None:
            require_shape(op, name, part, batch, layer.hidden_size)


def scan_layer(layer: nn.RNNBase, x: Tensor, rows: Tensor, order: Tensor, out: Tensor) -> RecurrentState:
    """Run a layer over the inputs x[rows], x (R, inputs), rows (B, S), in the order (B, S) of positions, into `out`."""
    weights = RecurrentWeights.of(layer)
    biases = weights.input_bias, weights.recurrent_bias
    return scan(kind_of(layer), linear(x, weights.input), weights.recurrent, *biases, rows, order, out)


def run_layer(
    layer: nn.RNNBase, x: Tensor, mask: Tensor | None, state: RecurrentState | None
) -> tuple[Tensor, RecurrentState]:
    """The PyTorch reference: the fused layer; mask: True = real position."""
    if not x.size(0):  # PyTorch's layers refuse an empty batch
        none = x.new_zeros(0, layer.hidden_size)
        return x.new_zeros(0, x.size(1), layer.hidden_size), RecurrentState(
            none, none if kind_of(layer) == "lstm" else None
        )
    first = None if state is None else layer_first(state, x.dtype)
    if mask is None:
        outputs, final = layer(x, first)
        return outputs, batch_first(final)
    if kind_of(layer) == "gru":  # the state is the last real output, so the layer can run over padding
        outputs, _ = layer(x, first)
        return outputs, RecurrentState(last(outputs, mask), None)
    lengths = mask.sum(1).clamp(min=1).cpu()
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    outputs, final = layer(packed, first)
    return pad_packed_sequence(outputs, batch_first=True, total_length=x.size(1))[0], batch_first(final)


def layer_first(state: RecurrentState, dtype: torch.dtype) -> Tensor | tuple[Tensor, Tensor]:
    """A state as an argument of `nn.LSTM` and `nn.GRU`, with a layer dimension first."""
    hidden = state.hidden[None].to(dtype)
    return hidden if state.cell is None else (hidden, state.cell[None].to(dtype))


def batch_first(final: Tensor | tuple[Tensor, Tensor]) -> RecurrentState:
    """The state in the return value of `nn.LSTM` and `nn.GRU`."""
    if isinstance(final, Tensor):
        return RecurrentState(final[0], None)
    return RecurrentState(final[0][0], final[1][0])


def flat_indices(mask: Tensor) -> Tensor:
    """The index (B, S) of each position in the flattened padded batch; mask: True = real position."""
    return torch.arange(mask.numel(), device=mask.device).view(mask.shape)


def forward_order(mask: Tensor) -> Tensor:
    """The positions (B, S) of each sequence from first to last, -1 after the last real one; at least one position.

    `mask` is True at real positions.
    """
    positions, lengths = torch.arange(mask.size(1), device=mask.device), mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(positions < lengths, positions, -1)


def reverse_order(mask: Tensor) -> Tensor:
    """The positions (B, S) of each sequence from the last real one to the first, -1 after that.

    `mask` is True at real positions.
    """
    positions, lengths = torch.arange(mask.size(1), device=mask.device), mask.sum(1, keepdim=True).clamp(min=1)
    return (lengths - 1 - positions).clamp(min=-1)


def reverse(x: Tensor, mask: Tensor) -> Tensor:
    """Each sequence of x (B, S, ...) with its real positions reversed; padding stays at the end.

    `mask` is True at real positions.
    """
    positions = torch.arange(mask.size(1), device=mask.device)
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    mirrored = torch.where(mask, lengths - 1 - positions, positions)  # (B, S)
    rows = torch.arange(len(mask), device=mask.device)[:, None] * mask.size(1)
    return x.flatten(0, 1).index_select(0, (rows + mirrored).flatten()).view(x.shape)


def last(x: Tensor, mask: Tensor) -> Tensor:
    """The last real position of each sequence of x (B, S, D): (B, D); mask: True = real position."""
    rows = torch.arange(len(mask), device=mask.device) * mask.size(1)
    return x.flatten(0, 1).index_select(0, rows + mask.sum(1).clamp(min=1) - 1)
