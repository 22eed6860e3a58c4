"""Residual connections with layer normalization, after the sum (post) or before the sublayer (pre)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from torch import Tensor, nn

from saccade.ops.layer_norm import layer_norm, residual_layer_norm

if TYPE_CHECKING:
    from saccade.layers.mixture_of_experts import Routing

NormPlacement = Literal["post", "pre"]


class Hidden(NamedTuple):
    """Hidden states between two sublayers."""

    x: Tensor  # (N, D) the residual stream
    normed: Tensor  # (N, D) the input of the next sublayer; pre-norm: LayerNorm(x), post-norm: x


class SublayerOutput(NamedTuple):
    """The output of a sublayer: its last linear layer without the bias, which the fused residual sum adds."""

    values: Tensor  # (N, D)
    bias: Tensor | None  # (D,)
    weights: Tensor | None = None  # attention weights, if recorded
    routing: Routing | None = None  # of a mixture of experts, in training


class Residual(nn.Module):
    """post: LayerNorm(x + sublayer(x)) (Vaswani et al. 2017, section 3.1); pre: x + sublayer(LayerNorm(x)).

    A sum and the layer norm that follows it are one op. With the norm before the sublayer, the norm that follows a sum
    belongs to the next sublayer, or to the end of the stack.
    """

    def __init__(self, width: int, probability: float, norm: NormPlacement) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.probability = probability
        self.pre_norm = norm == "pre"

    def begin(self, x: Tensor) -> Hidden:
        """The input of the first sublayer of a stack, x (N, D)."""
        norm = self.norm
        return Hidden(x, layer_norm(x, norm.weight, norm.bias, norm.eps) if self.pre_norm else x)

    def forward(self, hidden: Hidden, sublayer: SublayerOutput, next_norm: nn.LayerNorm) -> Hidden:
        """Add the output of the sublayer, with dropout, and normalize; post-norm does not read `next_norm`."""
        norm = next_norm if self.pre_norm else self.norm
        total, normed = residual_layer_norm(
            *(hidden.x, sublayer.values, sublayer.bias, norm.weight, norm.bias, norm.eps),
            probability=self.probability if self.training else 0.0,
        )
        return Hidden(total if self.pre_norm else normed, normed)
