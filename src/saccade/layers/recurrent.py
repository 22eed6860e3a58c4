"""Recurrent layers: LSTM (Hochreiter and Schmidhuber 1997) and GRU (Cho et al. 2014), over a sequence or step by step.

Real places come before padded ones; what stands in the padding never reaches a real place.

Where nothing is to be learnt, and there are kernels, the gates of a place are made in one pass, both directions write
into the same memory, and what several places have in common is projected once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saccade.csrc.abi import Shares
from saccade.csrc.library import for_inference
from saccade.layers.cells import GATES, CellKind, RecurrentState, advance, each_part, gru_state, lstm_state, state_after
from saccade.layers.products import product


class Recurrent(nn.Module):
    """One layer in one direction."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, width, batch_first=True)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """x (B, T, inputs) to all outputs (B, T, H), and the state after each row's last real place.

        In the weights' own precision, whatever autocast says: fused layers of GPUs know only its half precision.
        """
        if mask is not None and state is None and for_inference(x):
            outputs = x.new_zeros(*mask.shape, self.layer.hidden_size)
            return outputs, self.scan(x.flatten(0, 1), one_each(mask), in_order(mask), outputs)
        with torch.autocast(x.device.type, enabled=False):
            return self.run(x.to(self.weights()[0].dtype), mask, state)

    def run(self, x: Tensor, mask: Tensor | None, state: RecurrentState | None) -> tuple[Tensor, RecurrentState]:
        """The same in one precision."""
        first = None if state is None else layer_first(state, x.dtype)
        if mask is None:
            outputs, final = self.layer(x, first)
            return outputs, batch_first(final)
        if self.kind == "gru":  # the state is the last output, so padding can simply run along
            outputs, _ = self.layer(x, first)
            return outputs, RecurrentState(last(outputs, mask), None)
        lengths = mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, final = self.layer(packed, first)
        return pad_packed_sequence(outputs, batch_first=True, total_length=x.size(1))[0], batch_first(final)

    def step(self, x: Tensor, state: RecurrentState) -> RecurrentState:
        """One place: x (B, inputs)."""
        weights = self.weights()
        if for_inference(x):
            given, own, input_bias, recurrent_bias = weights
            shares = product(x, given), product(state.hidden, own)
            return state_after(state, *shares, input_bias=input_bias, recurrent_bias=recurrent_bias)
        if state.cell is None:
            return RecurrentState(torch.gru_cell(x, state.hidden, *weights), None)
        return RecurrentState(*torch.lstm_cell(x, [state.hidden, state.cell], *weights))

    def scan(self, x: Tensor, rows: Tensor, order: Tensor, out: Tensor) -> RecurrentState:
        """On the kernels: the rows (B, S) of x (R, inputs), in the order (B, S) of their places, -1 after the last.

        Outputs go to `out` (B, S, H), which may be a column of a wider memory; the last state is returned.
        """
        given, own, input_bias, recurrent_bias = self.weights()
        inputs = product(x, given)  # (R, G·H)
        if len(inputs) <= int(rows.max()):
            raise ValueError(f"row {int(rows.max())} of {len(inputs)}")
        real, first = order >= 0, torch.arange(len(order))[:, None] * order.size(1)
        which = torch.where(real, rows.gather(1, order.clamp(min=0)), -1).T.contiguous()  # (S, B)
        where = (first + order).T.contiguous()  # (S, B)
        state = each_part(empty_state(self.kind, len(order), own), Tensor.clone)  # it is written over
        recurrent = own.new_empty(len(order), len(own))
        shares = Shares.of(inputs, recurrent, input_bias=input_bias, recurrent_bias=recurrent_bias, out=out)
        for place in range(order.size(1)):
            torch.mm(state.hidden, own.T, out=recurrent)
            shares.which, shares.where = which[place].data_ptr(), where[place].data_ptr()
            advance(shares, state, state)
        return state

    def empty(self, like: Tensor) -> RecurrentState:
        """The state before the first place, all zeros, for a batch like `like` (B, …)."""
        return empty_state(self.kind, like.size(0), self.weights()[1])

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W, U and their biases, by the library's names."""
        found = (getattr(self.layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
        return cast("tuple[Tensor, Tensor, Tensor, Tensor]", tuple(found))


class Bidirectional(nn.Module):
    """Two layers that read the sequence from either end; their outputs stand side by side."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.forwards = Recurrent(kind, inputs, width)
        self.backwards = Recurrent(kind, inputs, width)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """x (B, S, inputs) to outputs (B, S, 2H), forwards first, and the last state of each direction."""
        if for_inference(x):
            return self.scan(x.flatten(0, 1), one_each(mask), mask)
        there, end = self.forwards(x, mask)
        back, beginning = self.backwards(reverse(x, mask), mask)
        return torch.cat([there, reverse(back, mask)], -1), end, beginning

    def of_tokens(
        self, embed: Callable[[Tensor], Tensor], tokens: Tensor, mask: Tensor
    ) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """The same of `embed(tokens)`, tokens (B, S), if the embedding of a token depends on it alone.

        Few tokens make up a batch: in evaluation each is projected once, wherever it stands.
        """
        if self.training or not for_inference(self.forwards.weights()[0]) or not mask.any():
            return self(embed(tokens), mask)  # type: ignore[no-any-return]
        distinct, places = torch.unique(tokens[mask], return_inverse=True)
        return self.scan(embed(distinct), torch.zeros_like(tokens).masked_scatter(mask, places), mask)

    def scan(self, x: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """On the kernels: the rows (B, S) of x (R, inputs)."""
        width = self.forwards.layer.hidden_size
        out = x.new_zeros(*mask.shape, 2 * width)
        end = self.forwards.scan(x, rows, in_order(mask), out[..., :width])
        return out, end, self.backwards.scan(x, rows, in_reverse(mask), out[..., width:])

    def outputs(self, x: Tensor, mask: Tensor) -> Tensor:
        """The outputs alone (B, S, 2H): with no last state to find, padding can simply run along."""
        there, _ = self.forwards(x)
        back, _ = self.backwards(reverse(x, mask))
        return torch.cat([there, reverse(back, mask)], -1)


class FedRecurrent(nn.Module):
    """One layer whose input has two parts: one known for all places beforehand, one that each step itself makes.

    The known part (embeddings) is projected for all places by one product; the fed part (a context, the last output)
    joins at its step.
    """

    def __init__(self, kind: CellKind, inputs: int, fed: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = width
        gates = GATES[kind] * width
        self.input = nn.Linear(inputs, gates)
        self.fed = nn.Linear(fed, gates, bias=False)
        self.hidden = nn.Linear(width, gates, bias=kind == "gru")  # an LSTM has one bias, a GRU two
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)  # as the library's own layers

    def project(self, x: Tensor) -> Tensor:
        """The known part (…, inputs) to its share of the gates (…, G·H)."""
        return self.input(x)  # type: ignore[no-any-return]

    def forward(self, projected: Tensor, fed: Tensor, state: RecurrentState) -> RecurrentState:
        """One place: projected (B, G·H), fed (B, fed)."""
        if for_inference(fed):
            shares = projected, product(state.hidden, self.hidden.weight)
            return state_after(state, *shares, fed=product(fed, self.fed.weight), recurrent_bias=self.hidden.bias)
        gates = torch.addmm(projected, fed, self.fed.weight.T)  # (B, G·H)
        if state.cell is None:
            return gru_state(gates, self.hidden(state.hidden), state.hidden)
        return lstm_state(torch.addmm(gates, state.hidden, self.hidden.weight.T), state.cell)

    def empty(self, like: Tensor) -> RecurrentState:
        """The state before the first place, all zeros, for a batch like `like` (B, …)."""
        return empty_state(self.kind, like.size(0), self.hidden.weight)


def empty_state(kind: CellKind, rows: int, weight: Tensor) -> RecurrentState:
    """Zeros of the type of a recurrent weight (G·H, H)."""
    zeros = weight.new_zeros(rows, weight.size(1))
    return RecurrentState(zeros, zeros if kind == "lstm" else None)


def layer_first(state: RecurrentState, dtype: torch.dtype) -> Tensor | tuple[Tensor, Tensor]:
    """A state as the library wants it: the number of the layer before the batch, in one precision."""
    hidden = state.hidden[None].to(dtype)
    return hidden if state.cell is None else (hidden, state.cell[None].to(dtype))


def batch_first(final: Tensor | tuple[Tensor, Tensor]) -> RecurrentState:
    """What the library returns, as a state."""
    if isinstance(final, Tensor):
        return RecurrentState(final[0], None)
    return RecurrentState(final[0][0], final[1][0])


def one_each(mask: Tensor) -> Tensor:
    """Numbers for the places (B, S), row after row."""
    return torch.arange(mask.numel()).view(mask.shape)


def in_order(mask: Tensor) -> Tensor:
    """The places (B, S) of each row in order, -1 after the last real one; one place at least."""
    places, lengths = torch.arange(mask.size(1)), mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(places < lengths, places, -1)


def in_reverse(mask: Tensor) -> Tensor:
    """The same from the last real place to the first."""
    places, lengths = torch.arange(mask.size(1)), mask.sum(1, keepdim=True).clamp(min=1)
    return (lengths - 1 - places).clamp(min=-1)


def reverse(x: Tensor, mask: Tensor) -> Tensor:
    """Each row of x (B, S, …) with its real places in reverse; the padding stays behind them."""
    places = torch.arange(mask.size(1), device=mask.device)
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    mirrored = torch.where(mask, lengths - 1 - places, places)  # (B, S)
    rows = torch.arange(len(mask), device=mask.device)[:, None] * mask.size(1)
    return x.flatten(0, 1).index_select(0, (rows + mirrored).flatten()).view(x.shape)


def last(x: Tensor, mask: Tensor) -> Tensor:
    """The last real place of each row of x (B, S, D): (B, D)."""
    rows = torch.arange(len(mask), device=mask.device) * mask.size(1)
    return x.flatten(0, 1).index_select(0, rows + mask.sum(1).clamp(min=1) - 1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real places of each row of x (B, S, D): (B, D)."""
    real = mask[:, :, None]
    return x.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
