"""The layers of table 1 in Vaswani et al. 2017: how each is built and run, and its costs according to the paper.

The table counts only the mixing of positions. The layers here are complete: self-attention has its four projections,
which add 4·n·d² multiplications, and `multiplications` counts them. Dilated and separable convolution are in section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError, did_you_mean


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer besides its width; the letters are those of the table."""

    kernel: int = 3  # k
    radius: int = 32  # r: positions on each side that a position attends to
    heads: int = 1


@dataclass(frozen=True)
class Layer:
    """One kind of layer."""

    title: str
    complexity: str
    """Complexity per layer, as in the paper."""
    sequential: str
    """Sequential operations, as in the paper."""
    path: str
    """Maximum path length between two positions, as in the paper."""
    memory: int
    """The power of n with which memory should grow."""
    build: Callable[[int, Sizes, int], nn.Module]
    """From the width, the sizes and the index of the layer in its stack, from 0."""
    run: Callable[[nn.Module, Tensor], Tensor]
    """From x (B, T, D) to outputs (B, T, D)."""
    multiplications: Callable[[int, int, Sizes], int]
    """Multiplications of one forward pass, from n and d."""
    path_length: Callable[[int, Sizes], int]
    """The exact maximum path length between n positions that the paper's formula gives for these sizes."""
    causal: bool = False
    """Whether an output depends on no later input."""


def build_attention(width: int, sizes: Sizes, index: int) -> nn.Module:
    """Multi-head self-attention."""
    from saccade.layers.multi_head import SelfAttention

    return SelfAttention(width, sizes.heads)


def build_restricted(width: int, sizes: Sizes, index: int) -> nn.Module:
    """Self-attention within a radius."""
    from saccade.layers.local_attention import LocalSelfAttention

    return LocalSelfAttention(width, sizes.heads, sizes.radius)


def build_recurrent(width: int, sizes: Sizes, index: int) -> nn.Module:
    """A unidirectional LSTM."""
    from saccade.layers.recurrent import Recurrent

    return Recurrent("lstm", width, width)


def build_convolution(width: int, sizes: Sizes, index: int) -> nn.Module:
    """Convolution with a contiguous kernel."""
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel)


def build_dilated(width: int, sizes: Sizes, index: int) -> nn.Module:
    """Convolution with dilation ((k + 1) / 2)^index: 1, 2, 4 … for k = 3.

    The paper's log_k(n) is for a kernel with all its taps on one side. A centered kernel has (k - 1) / 2 on each side;
    with this base they are the digits of every distance, so that no position is skipped.
    """
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel, dilation=dilation_base(sizes) ** index)


def build_separable(width: int, sizes: Sizes, index: int) -> nn.Module:
    """Depthwise, then pointwise convolution."""
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel, separable=True)


def run_explicit(layer: nn.Module, x: Tensor) -> Tensor:
    """Run attention with the weight matrix in memory."""
    return attend_packed(layer, x, record=True)


def run_attention(layer: nn.Module, x: Tensor) -> Tensor:
    """Run attention as in training."""
    return attend_packed(layer, x)


def attend_packed(layer: nn.Module, x: Tensor, *, record: bool = False) -> Tensor:
    """Run an attention layer over x (B, T, D) without padding; its output has the bias of the last projection."""
    from saccade.ops.packed import PackedLayout

    layout = PackedLayout.of(torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
    output = layer(layout.pack(x), layout, record=record)
    return layout.unpack(output.values + output.bias)


def run_recurrent(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a recurrent layer and drop its last state."""
    outputs: Tensor = layer(x)[0]
    return outputs


def run_plain(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer that returns its outputs."""
    outputs: Tensor = layer(x)
    return outputs


def attention_multiplications(length: int, width: int, sizes: Sizes) -> int:
    """Scores and weighted sum, n·n·d each, and four projections."""
    return 2 * length**2 * width + 4 * length * width**2


def restricted_multiplications(length: int, width: int, sizes: Sizes) -> int:
    """Scores and weighted sum over at most 2r + 1 positions, and four projections."""
    attended = min(length, 2 * sizes.radius + 1)
    return 2 * length * attended * width + 4 * length * width**2


def recurrent_multiplications(length: int, width: int, sizes: Sizes) -> int:
    """Four gates of an LSTM, each with a matrix for the input and one for the state."""
    return 8 * length * width**2


def convolution_multiplications(length: int, width: int, sizes: Sizes) -> int:
    """One matrix for each tap of the kernel."""
    return sizes.kernel * length * width**2


def separable_multiplications(length: int, width: int, sizes: Sizes) -> int:
    """One vector for each tap, and one matrix."""
    return sizes.kernel * length * width + length * width**2


def contiguous_path(length: int, reach: int) -> int:
    """Layers that connect n positions if each reaches `reach` positions to a side; at least one."""
    return max(1, -(-(length - 1) // reach))


def dilation_base(sizes: Sizes) -> int:
    """The taps of a centered kernel on one side, including the middle one."""
    return (sizes.kernel + 1) // 2


def dilated_path(length: int, sizes: Sizes) -> int:
    """The logarithm of n to the base (k + 1) / 2, rounded up: the digits of n - 1."""
    layers = 1
    while dilation_base(sizes) ** layers < length:
        layers += 1
    return layers


def convolution_path(length: int, sizes: Sizes) -> int:
    """A centered kernel reaches (k - 1) / 2 positions to each side."""
    return contiguous_path(length, (sizes.kernel - 1) // 2)


LAYERS = {
    "explicit": Layer(
        "self-attention, explicit", "n²·d", "1", "1", 2,
        build_attention, run_explicit, attention_multiplications, lambda length, sizes: 1,
    ),
    "fused": Layer(
        "self-attention, fused", "n²·d", "1", "1", 1,
        build_attention, run_attention, attention_multiplications, lambda length, sizes: 1,
    ),
    "restricted": Layer(
        "self-attention, restricted", "r·n·d", "1", "n/r", 1,
        build_restricted, run_attention, restricted_multiplications,
        lambda length, sizes: contiguous_path(length, sizes.radius),
    ),
    "recurrent": Layer(
        "recurrent (LSTM)", "n·d²", "n", "n", 1,
        build_recurrent, run_recurrent, recurrent_multiplications, lambda length, sizes: length, causal=True,
    ),
    "convolution": Layer(
        "convolution", "k·n·d²", "1", "n/k", 1,
        build_convolution, run_plain, convolution_multiplications, convolution_path,
    ),
    "dilated": Layer(
        "convolution, dilated", "k·n·d²", "1", "log_k(n)", 1,
        build_dilated, run_plain, convolution_multiplications, dilated_path,
    ),
    "separable": Layer(
        "convolution, separable", "k·n·d + n·d²", "1", "n/k", 1,
        build_separable, run_plain, separable_multiplications, convolution_path,
    ),
}  # fmt: skip
"""By the name that `--layers` takes, in the order of the table."""

MEASURED_INDEX = 1
"""The index in a stack of the layer that is measured: there, a dilated convolution is dilated."""


def select_layers(names: list[str]) -> dict[str, Layer]:
    """The layers with these names, in the order of the table."""
    for name in names:
        if name not in LAYERS:
            raise SaccadeError(f"unknown layer '{name}'", hint=did_you_mean(name, LAYERS))
    return {name: layer for name, layer in LAYERS.items() if name in names}
