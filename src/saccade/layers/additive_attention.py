"""Additive attention of recurrent decoders: a feed-forward network with one hidden layer scores every position.

s_j = v·tanh(W q + U m_j + b);  p = softmax(s);  a = Σ_j p_j m_j        Bahdanau et al. 2015, appendix A.1.2
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saccade.interface import Memory
from saccade.layers.attention import group_by_sentence
from saccade.ops.single_head_attention import SingleHeadAttention, single_head_attention


class AdditiveAttention(nn.Module):
    """Single-head additive attention whose values are the memory."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, width, bias=False)  # W
        self.key = nn.Linear(memory, width)  # U, b
        self.vector = nn.Parameter(torch.empty(width))  # v
        nn.init.normal_(self.vector, std=width**-0.5)

    def project(self, memory: Memory) -> Tensor:
        """The keys (B, S, a): they do not depend on the query, so a decoder projects them once."""
        return self.key(memory.states)  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, keys: Tensor, memory: Memory) -> SingleHeadAttention:
        """hidden (N, H), N = B·W, to contexts (N, D) and weights (B, W, S)."""
        queries = group_by_sentence(self.query(hidden), len(keys))  # (B, W, a)
        found = single_head_attention(queries, keys, memory.states, memory.mask, self.vector)
        return SingleHeadAttention(found.context.flatten(0, 1), found.weights)
