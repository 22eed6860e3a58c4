"""The position-wise feed-forward network: the same two linear maps at every position."""

from __future__ import annotations

from torch import Tensor, nn

from saccade.layers.residual import SublayerOutput
from saccade.ops.bias_activation import bias_relu
from saccade.ops.linear import packed_linear
from saccade.ops.packed import PackedLayout


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.inner = inner
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, layout: PackedLayout | None = None) -> SublayerOutput:
        """x (N, D); positions do not interact, so the layout is not read."""
        inner = bias_relu(packed_linear(x, self.expand.weight), self.expand.bias)  # (N, inner)
        return SublayerOutput(packed_linear(inner, self.contract.weight), self.contract.bias)
