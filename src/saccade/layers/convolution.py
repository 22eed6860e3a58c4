"""Convolutions over time: each place of the output reads `kernel` places of the input, `dilation` places apart.

    full         y_t = Σ_i W_i x_(t + i·dilation) + b            one product for all taps
    separable    y_t = P (Σ_i w_i ∘ x_(t + i·dilation)) + b      depthwise, then pointwise (Chollet 2017)

The places that a sequence does not have are zeros. A causal convolution reads its own place and those before it; any
other has an odd kernel, whose middle is its own place. Padding inside a batch is for the caller to set to zero.

The neighbours of a place are laid side by side and meet the weights in one matrix product. Forward and backward on the
CPU, that is as fast as the library's fastest kernel (channels last) and up to twice as fast as its plain one, and it
needs no preparation for each new shape of a batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.ops.linear import linear

Recent = tuple[Tensor, ...]
"""The last `reach` inputs of a convolution, each (B, inputs), the oldest first: a ring; no step copies any of them."""

Pending = tuple[Tensor, ...]
"""What the inputs so far add to the next `reach` outputs, each (B, outputs), the nearest first."""


class Projection(nn.Module):
    """W x + b, with a normalised weight if asked: W = scale · direction / |direction|, each row by itself.

    Salimans and Kingma 2016, eq. 2. Weights start normal with variance gain / inputs, biases at zero; `scale` starts at
    the expected length of a row, not at its own length.
    """

    def __init__(self, inputs: int, outputs: int, *, gain: float = 1.0, normalised: bool = False) -> None:
        super().__init__()
        self.normalised = normalised
        self.direction = nn.Parameter(torch.empty(outputs, inputs))
        self.scale = nn.Parameter(torch.empty(outputs)) if normalised else None
        self.bias = nn.Parameter(torch.empty(outputs))
        nn.init.normal_(self.direction, std=math.sqrt(gain / inputs))
        nn.init.zeros_(self.bias)
        if self.scale is not None:
            nn.init.constant_(self.scale, math.sqrt(gain))

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """x (..., inputs) to (..., outputs); who calls often may keep the `weight()` and hand it in."""
        return linear(x, self.weight() if weight is None else weight, self.bias)

    def weight(self) -> Tensor:
        """W (outputs, inputs)."""
        if self.scale is None:
            return self.direction
        lengths = torch.linalg.vector_norm(self.direction, dim=1)
        return self.direction * (self.scale / lengths)[:, None]  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """A convolution of (B, T, inputs) to (B, T, outputs); `gain`: its output's variance over its input's, at first."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        dilation: int = 1,
        separable: bool = False,
        causal: bool = False,
        gain: float = 1.0,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        if not causal and kernel % 2 == 0:
            raise ValueError(f"a convolution that looks both ways has an odd kernel, not {kernel}")
        self.kernel = kernel
        self.dilation = dilation
        self.causal = causal
        self.reach = (kernel - 1) * dilation  # places between the first tap and the last
        self.depthwise = nn.Parameter(torch.empty(kernel, inputs)) if separable else None
        if self.depthwise is not None:
            nn.init.normal_(self.depthwise, std=kernel**-0.5)
        taps = 1 if separable else kernel
        self.projection = Projection(taps * inputs, outputs, gain=gain, normalised=normalised)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, inputs)."""
        return self.projection(self.gather(x))  # type: ignore[no-any-return]

    def gather(self, x: Tensor) -> Tensor:
        """What the projection reads of x (B, T, inputs)."""
        before = self.reach if self.causal else self.reach // 2
        padded = F.pad(x, (0, 0, before, self.reach - before))  # (B, T + reach, inputs)
        return self.combine([padded[:, i * self.dilation :][:, : x.size(1)] for i in range(self.kernel)])

    def gather_rows(self, x: Tensor, under: Tensor) -> Tensor:
        """What the projection reads of places without padding, x (R, inputs), with their `neighbours` (R, kernel)."""
        row = F.pad(x, (0, 0, 0, 1))  # the last is what lies outside: zeros
        if self.depthwise is None:
            return row.index_select(0, under.flatten()).view(len(x), -1)
        return self.combine([row.index_select(0, places) for places in under.unbind(1)])

    def step(self, x: Tensor, recent: Recent) -> tuple[Tensor, Recent]:
        """One more place of a causal convolution, x (B, inputs): the newest input takes the place of the oldest."""
        read, recent = self.gather_step(x, recent)
        return self.projection(read), recent

    def gather_step(self, x: Tensor, recent: Recent) -> tuple[Tensor, Recent]:
        """What the projection reads in a step."""
        window = (*recent, x)  # reach + 1 of them
        return self.combine(list(window[:: self.dilation])), window[1:]

    def responses(self, weight: Tensor) -> Tensor:
        """The projection's weight as a map (kernel·outputs, inputs) from one input to what it adds to the outputs that
        read it: to the last of them first, where it is under the first tap.
        """
        if self.depthwise is None:
            return weight.view(len(weight), self.kernel, -1).transpose(0, 1).flatten(0, 1)
        return (self.depthwise[:, None] * weight).flatten(0, 1)

    def add_step(self, response: Tensor, pending: Pending) -> tuple[Tensor, Pending]:
        """`step` seen from the input: its response (B, kernel·outputs) to the output (B, outputs) without a bias."""
        farthest, *others = response.chunk(self.kernel, 1)
        sums = [*pending, farthest]
        for number, added in enumerate(reversed(others)):
            sums[number * self.dilation] = sums[number * self.dilation] + added
        now, *later = sums
        return now, tuple(later)

    def nothing_pending(self, like: Tensor) -> Pending:
        """What is pending before the first place, zeros, for a batch like `like` (B, …)."""
        return (self.projection.direction.new_zeros(like.size(0), self.projection.direction.size(0)),) * self.reach

    def empty(self, like: Tensor) -> Recent:
        """The inputs before the first place, zeros, for a batch like `like` (B, …)."""
        weight = self.projection.direction
        inputs = weight.size(1) // self.kernel if self.depthwise is None else weight.size(1)
        return (weight.new_zeros(like.size(0), inputs),) * self.reach

    def combine(self, taps: list[Tensor]) -> Tensor:
        """The places under the taps, each (..., inputs), side by side, or each channel's sum of them."""
        if self.depthwise is None:
            return torch.cat(taps, -1)
        total = taps[0] * self.depthwise[0]
        for tap, own in zip(taps[1:], self.depthwise[1:], strict=True):
            total = torch.addcmul(total, tap, own)
        return total


def neighbours(mask: Tensor, kernel: int, dilation: int) -> Tensor:
    """The real places of mask (B, S), one after another, that are under the taps of each of them: (R, kernel).

    The convolution looks both ways; where it looks beyond the sentence there is R, one more than the last.
    """
    count, reach = int(mask.sum()), (kernel - 1) * dilation
    number = torch.full(mask.shape, count, device=mask.device)
    number[mask] = torch.arange(count, device=mask.device)
    padded = F.pad(number, (reach // 2, reach - reach // 2), value=count)
    return torch.stack([padded[:, tap * dilation :][:, : mask.size(1)][mask] for tap in range(kernel)], 1)
