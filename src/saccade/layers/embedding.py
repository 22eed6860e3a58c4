"""Token embeddings with positions, and the output layer, which may be tied to them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import OutputProjection, VocabularySizes
from saccade.layers.positions import PositionKind, make_positions
from saccade.ops.dropout import dropout
from saccade.ops.linear import linear


def embedding_table(size: int, width: int) -> nn.Parameter:
    """A table (V, D) whose rows have unit length on average: sqrt(D) times a row has entries of unit variance."""
    table = nn.Parameter(torch.empty(size, width))
    nn.init.normal_(table, std=width**-0.5)
    return table


class Embedding(nn.Module):
    """sqrt(D) · table[token] + position, then dropout (Vaswani et al. 2017, sections 3.4, 3.5, 5.4).

    With a `position_width` the position vector, of that width, is concatenated instead of added.
    """

    def __init__(
        self,
        table: nn.Parameter,
        probability: float,
        positions: PositionKind,
        max_positions: int,
        position_width: int | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(table.size(1))
        self.probability = probability
        if position_width is None:
            self.positions = make_positions(positions, table.size(1), max_positions)
        else:
            self.positions = make_positions(positions, position_width, max_positions, "concatenate")

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """tokens (B, T), of which the first has position `first`, to (B, T, D)."""
        x = self.positions(F.embedding(tokens, self.table) * self.scale, first)
        return dropout(x, self.probability, self.training)


def token_embeddings(sizes: VocabularySizes, width: int, probability: float) -> tuple[Embedding, Embedding]:
    """Embeddings of source and target without positions; with a joint vocabulary they share one table."""
    target = embedding_table(sizes.target, width)
    source = target if sizes.joint else embedding_table(sizes.source, width)
    return Embedding(source, probability, "none", max_positions=0), Embedding(
        target, probability, "none", max_positions=0
    )


class OutputLayer(nn.Module):
    """The output layer: decoder outputs to logits.

    Its weight may be tied to the target embedding (Press and Wolf 2017), with a linear projection if the widths differ.
    """

    def __init__(self, width: int, embedding: nn.Parameter, *, tied: bool) -> None:
        super().__init__()
        between = tied and embedding.size(1) != width
        self.projection = nn.Linear(width, embedding.size(1), bias=False) if between else nn.Identity()
        self.table = embedding if tied else embedding_table(embedding.size(0), width)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, V)."""
        return linear(self.projection(x), self.table)

    def operands(self, x: Tensor) -> OutputProjection:
        """(…, D) to the operands of the last matrix product."""
        return OutputProjection(self.projection(x), self.table, None)
