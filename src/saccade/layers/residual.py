"""Residual connections with layer normalisation, after the sum (post) or before the sublayer (pre)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn

from saccade.ops.dropout import dropout
from saccade.ops.layer_norm import residual_layer_norm

NormPlace = Literal["post", "pre"]


class PackedHidden(NamedTuple):
    """What flows between the sublayers of a packed batch."""

    x: Tensor  # (N, D) residual sum
    normal: Tensor  # (N, D) input of the next sublayer


class Residual(nn.Module):
    """post: LayerNorm(x + sublayer(x)) (Vaswani et al. 2017, section 3.1); pre: x + sublayer(LayerNorm(x))."""

    def __init__(self, width: int, probability: float, norm: NormPlace) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.probability = probability
        self.pre = norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, sublayer: Tensor) -> Tensor:
        """The sum of the input and what the sublayer made of it."""
        total = x + dropout(sublayer, self.probability, self.training)
        return total if self.pre else self.norm(total)

    def rows(self, rows: PackedHidden, sublayer: Tensor, bias: Tensor, following: nn.LayerNorm) -> PackedHidden:
        """`after` of a packed batch and, with the norm before the sublayer, the `before` of the sublayer that follows.

        The sublayer ended in a product, whose bias is added here.
        """
        probability = self.probability if self.training else 0.0
        norm = following if self.pre else self.norm
        total, normal = residual_layer_norm(
            rows.x, sublayer, bias, norm.weight, norm.bias, norm.eps, probability=probability
        )
        return PackedHidden(total if self.pre else normal, normal)
