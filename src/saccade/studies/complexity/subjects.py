"""The layers of table 1, Vaswani et al. 2017: how each is built and run, and what the table says of it.

The table counts the mixing of places only. The layers here are whole: self-attention has its four projections, which
add 4·n·d² products, so `products` counts them too. Dilated and separable convolution are in the text of section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from saccade.errors import SaccadeError, did_you_mean


@dataclass(frozen=True)
class Sizes:
    """What a layer has beside its width; the letters are those of the table."""

    kernel: int = 3  # k
    radius: int = 32  # r: a place sees so many places on each side
    heads: int = 1


@dataclass(frozen=True)
class Subject:
    """One kind of layer."""

    title: str
    complexity: str
    """Per layer, as the paper states it."""
    sequential: str
    """Sequential operations, as the paper states them."""
    path: str
    """The longest path between two places, as the paper states it."""
    memory: int
    """The power of n with which memory should grow."""
    build: Callable[[int, Sizes, int], nn.Module]
    """From the width, the sizes and the layer's place in a stack, from 0."""
    run: Callable[[nn.Module, Tensor], Tensor]
    """x (B, T, D) to outputs (B, T, D)."""
    products: Callable[[int, int, Sizes], int]
    """Multiplications of one forward pass, from n and d."""
    longest_path: Callable[[int, Sizes], int]
    """The length of the longest path among n places that the paper's rule gives for these sizes, exactly."""
    one_way: bool = False
    """Whether an output sees only inputs at its own place and before."""


def build_attention(width: int, sizes: Sizes, place: int) -> nn.Module:
    """Multi-head self-attention."""
    from saccade.layers.multi_head import SelfAttention

    return SelfAttention(width, sizes.heads)


def build_restricted(width: int, sizes: Sizes, place: int) -> nn.Module:
    """Self-attention within a radius."""
    from saccade.layers.local_attention import LocalSelfAttention

    return LocalSelfAttention(width, sizes.heads, sizes.radius)


def build_recurrent(width: int, sizes: Sizes, place: int) -> nn.Module:
    """An LSTM in one direction."""
    from saccade.layers.recurrent import Recurrent

    return Recurrent("lstm", width, width)


def build_convolution(width: int, sizes: Sizes, place: int) -> nn.Module:
    """Convolution over contiguous places."""
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel)


def build_dilated(width: int, sizes: Sizes, place: int) -> nn.Module:
    """Convolution whose taps lie ((k + 1) / 2)^place apart: 1, 2, 4 … for k = 3.

    The paper's log_k(n) is that of a kernel with all its taps on one side. One that is centred has (k - 1) / 2 on each
    side; with this base they are the digits of every distance, so that no place is skipped.
    """
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel, dilation=digits(sizes) ** place)


def build_separable(width: int, sizes: Sizes, place: int) -> nn.Module:
    """Depthwise, then pointwise convolution."""
    from saccade.layers.convolution import Convolution

    return Convolution(width, width, sizes.kernel, separable=True)


def run_explicit(layer: nn.Module, x: Tensor) -> Tensor:
    """With every weight as a number in memory."""
    context: Tensor = layer(x, record=True).context
    return context


def run_attention(layer: nn.Module, x: Tensor) -> Tensor:
    """On the fast path of the layer."""
    context: Tensor = layer(x).context
    return context


def run_recurrent(layer: nn.Module, x: Tensor) -> Tensor:
    """The outputs, without the last state."""
    outputs: Tensor = layer(x)[0]
    return outputs


def run_plain(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer that returns its outputs."""
    outputs: Tensor = layer(x)
    return outputs


def attention_products(length: int, width: int, sizes: Sizes) -> int:
    """Scores and weighted sum, n·n·d each, and four projections."""
    return 2 * length**2 * width + 4 * length * width**2


def restricted_products(length: int, width: int, sizes: Sizes) -> int:
    """The same with the 2r + 1 places around each, as far as there are so many."""
    seen = min(length, 2 * sizes.radius + 1)
    return 2 * length * seen * width + 4 * length * width**2


def recurrent_products(length: int, width: int, sizes: Sizes) -> int:
    """Four gates of an LSTM, each with a matrix for the input and one for the state."""
    return 8 * length * width**2


def convolution_products(length: int, width: int, sizes: Sizes) -> int:
    """One matrix for each tap of the kernel."""
    return sizes.kernel * length * width**2


def separable_products(length: int, width: int, sizes: Sizes) -> int:
    """One vector for each tap, and one matrix."""
    return sizes.kernel * length * width + length * width**2


def contiguous_path(length: int, reach: int) -> int:
    """Layers that carry a signal over n - 1 places if each carries it over `reach`; at least one."""
    return max(1, -(-(length - 1) // reach))


def digits(sizes: Sizes) -> int:
    """The taps of a centred kernel on one side, with the middle."""
    return (sizes.kernel + 1) // 2


def dilated_path(length: int, sizes: Sizes) -> int:
    """The digits of n - 1 in the base (k + 1) / 2: the logarithm of n, rounded up."""
    layers = 1
    while digits(sizes) ** layers < length:
        layers += 1
    return layers


def convolution_path(length: int, sizes: Sizes) -> int:
    """A kernel of k places reaches (k - 1) / 2 to each side."""
    return contiguous_path(length, (sizes.kernel - 1) // 2)


SUBJECTS = {
    "explicit": Subject(
        "self-attention, explicit", "n²·d", "1", "1", 2,
        build_attention, run_explicit, attention_products, lambda length, sizes: 1,
    ),
    "fused": Subject(
        "self-attention, fused", "n²·d", "1", "1", 1,
        build_attention, run_attention, attention_products, lambda length, sizes: 1,
    ),
    "restricted": Subject(
        "self-attention, restricted", "r·n·d", "1", "n/r", 1,
        build_restricted, run_attention, restricted_products,
        lambda length, sizes: contiguous_path(length, sizes.radius),
    ),
    "recurrent": Subject(
        "recurrent (LSTM)", "n·d²", "n", "n", 1,
        build_recurrent, run_recurrent, recurrent_products, lambda length, sizes: length, one_way=True,
    ),
    "convolution": Subject(
        "convolution", "k·n·d²", "1", "n/k", 1,
        build_convolution, run_plain, convolution_products, convolution_path,
    ),
    "dilated": Subject(
        "convolution, dilated", "k·n·d²", "1", "log_k(n)", 1,
        build_dilated, run_plain, convolution_products, dilated_path,
    ),
    "separable": Subject(
        "convolution, separable", "k·n·d + n·d²", "1", "n/k", 1,
        build_separable, run_plain, separable_products, convolution_path,
    ),
}  # fmt: skip
"""By the name that `--layers` takes, in the order of the table."""

MEASURED_PLACE = 1
"""The place in a stack of the layer that is timed: a dilated convolution is dilated there."""


def chosen(names: list[str]) -> dict[str, Subject]:
    """The subjects of these names, in the order of the table."""
    for name in names:
        if name not in SUBJECTS:
            raise SaccadeError(f"there is no layer '{name}' to measure", do=did_you_mean(name, SUBJECTS))
    return {name: subject for name, subject in SUBJECTS.items() if name in names}
