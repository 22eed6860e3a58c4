"""The layers of table 1 in Vaswani et al. 2017: how each is built and run, and its costs according to the paper.

The table counts only the mixing of positions. The layers here are complete: self-attention has its four projections,
which add 4·n·d² multiplications, and `multiplications` counts them. Dilated and separable convolution are in section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saccade.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class LayerSizes:
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
    """Expected exponent of n in peak memory."""
    build: Callable[[int, LayerSizes, int], nn.Module]
    """Function that builds the layer from its width, its sizes and its index in the stack, from 0."""
    run: Callable[[nn.Module, Tensor], Tensor]
    """Function that runs the layer: x (B, T, D) to outputs (B, T, D)."""
    multiplications: Callable[[int, int, LayerSizes], int]
    """Function that counts the multiplications of one forward pass, from n, d and the sizes."""
    path_length: Callable[[int, LayerSizes], int]
    """Function that computes the maximum path length between n positions by the formula of the paper."""
    causal: bool = False
    """True if no output depends on a later input."""


def build_attention(width: int, sizes: LayerSizes, index: int) -> nn.Module:
    """Build multi-head self-attention."""
    from saccade.layers.multi_head import SelfAttention

    return SelfAttention(width, sizes.heads)


def build_restricted(width: int, sizes: LayerSizes, index: int) -> nn.Module:
    """Build self-attention within a radius."""
    from saccade.layers.local_attention import LocalSelfAttention

    return LocalSelfAttention(width, sizes.heads, sizes.radius)


def build_recurrent(width: int, sizes: LayerSizes, index: int) -> nn.Module:
    """Build a unidirectional LSTM."""
    from saccade.layers.recurrent import Recurrent

    return Recurrent("lstm", width, width)


def build_convolution(width: int, sizes: LayerSizes, index: int) -> nn.Module:
    """Build a convolution with a contiguous kernel."""
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel)


def build_dilated(width: int, sizes: LayerSizes, index: int) -> nn.Module:
    """Build a convolution with dilation ((k + 1) / 2)^index: 1, 2, 4 … for k = 3.

    The paper's log_k(n) is for a kernel with all its taps on one side. A centered kernel has (k - 1) / 2 on each side;
    with this base they are the digits of every distance, so that no position is skipped.
    """
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel, dilation=dilation_base(sizes) ** index)


def build_separable(width: int, sizes: LayerSizes, index: int) -> nn.Module:
    """Build a depthwise, then pointwise convolution."""
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


def attention_multiplications(length: int, width: int, sizes: LayerSizes) -> int:
    """Count scores and weighted sum, n·n·d each, and four projections."""
    return 2 * length**2 * width + 4 * length * width**2


def restricted_multiplications(length: int, width: int, sizes: LayerSizes) -> int:
    """Count scores and weighted sum over at most 2r + 1 positions, and four projections."""
    attended = min(length, 2 * sizes.radius + 1)
    return 2 * length * attended * width + 4 * length * width**2


def recurrent_multiplications(length: int, width: int, sizes: LayerSizes) -> int:
    """Count four gates of an LSTM, each with a matrix for the input and one for the state."""
    return 8 * length * width**2


def convolution_multiplications(length: int, width: int, sizes: LayerSizes) -> int:
    """Count one matrix product for each tap of the kernel."""
    return sizes.kernel * length * width**2


def separable_multiplications(length: int, width: int, sizes: LayerSizes) -> int:
    """Count one vector product for each tap, and one matrix product."""
    return sizes.kernel * length * width + length * width**2


def contiguous_path(length: int, reach: int) -> int:
    """Return how many layers connect n positions if each layer reaches `reach` positions to each side."""
    return max(1, -(-(length - 1) // reach))


def dilation_base(sizes: LayerSizes) -> int:
    """Return the number of taps of a centered kernel from the middle to one end."""
    return (sizes.kernel + 1) // 2


def dilated_path(length: int, sizes: LayerSizes) -> int:
    """Return the logarithm of n to the base (k + 1) / 2, rounded up: the number of digits of n - 1."""
    layers = 1
    while dilation_base(sizes) ** layers < length:
        layers += 1
    return layers


def convolution_path(length: int, sizes: LayerSizes) -> int:
    """Return the path length of a centered kernel, which reaches (k - 1) / 2 positions to each side."""
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
"""Layers by their names in `--layers`, in the order of the table."""

MEASURED_INDEX = 1
"""Index in the stack of the measured layer; at index 0, a dilated convolution would have dilation 1."""


def select_layers(names: list[str]) -> dict[str, Layer]:
    """Return the layers with these names, in the order of the table."""
    for name in names:
        if name not in LAYERS:
            raise UsageError(f"unknown layer '{name}'", hint=did_you_mean(name, LAYERS))
    return {name: layer for name, layer in LAYERS.items() if name in names}
