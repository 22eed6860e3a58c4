"""Convolutions over time: each output position reads `kernel` input positions, `dilation` positions apart.

    full         y_t = Σ_i W_i x_(t + i·dilation) + b            one product for all taps
    separable    y_t = P (Σ_i w_i ∘ x_(t + i·dilation)) + b      depthwise, then pointwise (Chollet 2017)

Positions outside of a sequence are zeros. A causal convolution reads its own position and earlier ones; any other has
an odd kernel with its own position in the middle. A packed batch has no padding; in a padded batch the caller sets
padding to zero.

The inputs under all taps are concatenated and multiplied by the weight in one product (unfold, or im2col). Forward and
backward on the CPU, that is as fast as the library's fastest convolution (channels last) and up to twice as fast as its
plain one, and it needs no preparation for each new shape of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.ops.linear import linear
from saccade.ops.packed import PackedLayout

ConvolutionCache = tuple[Tensor, ...]
"""The last `reach` inputs of a causal convolution, each (B, inputs), oldest first; a step copies none of them."""


class Projection(nn.Module):
    """W x + b, optionally with weight normalization: W = scale · direction / |direction|, each row by itself.

    Salimans and Kingma 2016, eq. 2. Weights start normal with variance gain / inputs, biases at zero; `scale` starts at
    the expected length of a row, not at its own length.
    """

    def __init__(self, inputs: int, outputs: int, *, gain: float = 1.0, normalized: bool = False) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(outputs, inputs))
        self.scale = nn.Parameter(torch.empty(outputs)) if normalized else None
        self.bias = nn.Parameter(torch.empty(outputs))
        nn.init.normal_(self.direction, std=math.sqrt(gain / inputs))
        nn.init.zeros_(self.bias)
        if self.scale is not None:
            nn.init.constant_(self.scale, math.sqrt(gain))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., inputs) to (..., outputs)."""
        return linear(x, self.weight(), self.bias)

    def weight(self) -> Tensor:
        """W (outputs, inputs)."""
        if self.scale is None:
            return self.direction
        lengths = torch.linalg.vector_norm(self.direction, dim=1)
        return self.direction * (self.scale / lengths)[:, None]  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """A convolution of (B, T, inputs) to (B, T, outputs); `gain` is the initial ratio of output to input variance."""

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
        normalized: bool = False,
    ) -> None:
        super().__init__()
        if not causal and kernel % 2 == 0:
            raise ValueError(f"a convolution that is not causal needs an odd kernel, not {kernel}")
        self.kernel = kernel
        self.dilation = dilation
        self.causal = causal
        self.reach = (kernel - 1) * dilation  # distance from the first tap to the last
        self.before = self.reach if causal else self.reach // 2  # distance from the first tap to the own position
        self.depthwise = nn.Parameter(torch.empty(kernel, inputs)) if separable else None
        if self.depthwise is not None:
            nn.init.normal_(self.depthwise, std=kernel**-0.5)
        taps = 1 if separable else kernel
        self.projection = Projection(taps * inputs, outputs, gain=gain, normalized=normalized)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of a padded batch x (B, T, inputs)."""
        padded = F.pad(x, (0, 0, self.before, self.reach - self.before))  # (B, T + reach, inputs)
        taps = [padded[:, tap * self.dilation :][:, : x.size(1)] for tap in range(self.kernel)]
        return self.projection(self.combine(taps))  # type: ignore[no-any-return]

    def unfold(self, x: Tensor, indices: Tensor) -> Tensor:
        """The projection's input for packed sequences: x (N, inputs), their `tap_indices` (N, kernel)."""
        # An embedding lookup is the gather with the fastest backward pass on the CPU, and a deterministic one on GPUs.
        gathered = F.embedding(indices, F.pad(x, (0, 0, 1, 0)))  # (N, kernel, inputs)
        return gathered.flatten(1) if self.depthwise is None else self.combine(gathered.unbind(1))

    def unfold_step(self, x: Tensor, cache: ConvolutionCache) -> tuple[Tensor, ConvolutionCache]:
        """The projection's input for one new position x (B, inputs) of a causal convolution, and the next cache."""
        window = (*cache, x)  # reach + 1 inputs
        return self.combine(window[:: self.dilation]), window[1:]

    def step(self, x: Tensor, cache: ConvolutionCache) -> tuple[Tensor, ConvolutionCache]:
        """One new position x (B, inputs) of a causal convolution, and the next cache."""
        unfolded, cache = self.unfold_step(x, cache)
        return self.projection(unfolded), cache

    def empty_cache(self, like: Tensor) -> ConvolutionCache:
        """The zeros before the first position, for a batch like `like` (B, ...)."""
        weight = self.projection.direction
        inputs = weight.size(1) // self.kernel if self.depthwise is None else weight.size(1)
        return (weight.new_zeros(like.size(0), inputs),) * self.reach

    def combine(self, taps: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
        """The inputs under the taps, each (..., inputs), concatenated; separable: their sum weighted by channel."""
        if self.depthwise is None:
            return torch.cat(taps, -1)
        total = taps[0] * self.depthwise[0]
        for tap, weight in zip(taps[1:], self.depthwise[1:], strict=True):
            total = torch.addcmul(total, tap, weight)
        return total


def tap_indices(convolutions: Iterable[Convolution], mask: Tensor, layout: PackedLayout) -> list[Tensor]:
    """For each convolution the packed positions under the taps of each packed position, (N, kernel).

    They count from 1; 0 is a position outside of the sequence. The layout is that of mask (B, T). Convolutions of one
    shape share one tensor.
    `mask` is True at real positions.
    """
    count = layout.pack(mask).size(0)
    numbers = torch.arange(1, count + 1, device=mask.device)  # (N,)
    padded = layout.unpack(numbers[:, None]).squeeze(2) * mask  # (B, T)
    found: dict[tuple[int, int, bool], Tensor] = {}
    indices = []
    for each in convolutions:
        shape = each.kernel, each.dilation, each.causal
        if shape not in found:
            extended = F.pad(padded, (each.before, each.reach - each.before))  # (B, T + reach)
            taps = [extended[:, tap * each.dilation :][:, : mask.size(1)] for tap in range(each.kernel)]
            found[shape] = layout.pack(torch.stack(taps, 2))
        indices.append(found[shape])
    return indices
