"""Additive attention for recurrent decoders: a feed-forward network with one hidden layer scores every place.

s_j = v·tanh(W q + U m_j + b);  p = softmax(s);  a = Σ_j p_j m_j        Bahdanau et al. 2015, appendix A.1.2
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saccade.interface import Memory
from saccade.layers.attention import side_by_side
from saccade.ops.single_head_attention import SingleHeadAttention, single_head_attention


class AdditiveAttention(nn.Module):
    """One head; the values are the memory itself."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, width, bias=False)  # W
        self.key = nn.Linear(memory, width)  # U, b
        self.vector = nn.Parameter(torch.empty(width))  # v
        nn.init.normal_(self.vector, std=width**-0.5)

    def project(self, memory: Memory) -> Tensor:
        """The keys (B, S, a), the same for all queries: make them once."""
        return self.key(memory.states)  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, keys: Tensor, memory: Memory) -> SingleHeadAttention:
        """hidden (N, H), N = B·W, to contexts (N, D) and weights (B, W, S)."""
        queries = side_by_side(self.query(hidden), len(keys))  # (B, W, a)
        found = single_head_attention(queries, keys, memory.states, memory.mask, self.vector)
        return SingleHeadAttention(found.context.flatten(0, 1), found.weights)
