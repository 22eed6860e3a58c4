"""The position-wise feed-forward network: the same two linear maps at every place."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from saccade.ops.bias_activation import bias_relu
from saccade.ops.linear import packed_linear


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

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D)."""
        return self.contract(F.relu(self.expand(x)))  # type: ignore[no-any-return]

    def rows(self, x: Tensor) -> Tensor:
        """Of a packed batch (N, D), without the last bias."""
        inner = bias_relu(packed_linear(x, self.expand.weight), self.expand.bias)
        return packed_linear(inner, self.contract.weight)
