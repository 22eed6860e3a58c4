"""Position encodings: sinusoidal, learned or none; added to embeddings or concatenated."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError

PositionKind = Literal["sinusoidal", "learned", "none"]
PositionUse = Literal["add", "concatenate"]


def sinusoids(length: int, width: int, first: int = 0, *, device: torch.device | None = None) -> Tensor:
    """The table PE (length, width) from position `first` on (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos(pos / 10000^(2i/width)).
    """
    positions = torch.arange(first, first + length, dtype=torch.float64, device=device)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64, device=device) * (-math.log(10000.0) / width))
    table = torch.empty(length, width, dtype=torch.float64, device=device)
    table[:, 0::2] = torch.sin(positions * rates)
    table[:, 1::2] = torch.cos(positions * rates[: width // 2])
    return table.float()


class SinusoidalPositions(nn.Module):
    """Adds sinusoids; positions beyond the table are computed when needed, so inputs have no maximum length."""

    def __init__(self, width: int, table: int = 512) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoids(table, width), persistent=False)
        self.table: Tensor

    def forward(self, x: Tensor, first: int = 0) -> Tensor:
        """Add the vectors of positions `first`, `first + 1`, … to x (B, T, D)."""
        return x + self.vectors(x, first)

    def vectors(self, x: Tensor, first: int = 0) -> Tensor:
        """The position vectors (T, width) of x (B, T, …)."""
        last = first + x.size(1)
        if last <= self.table.size(0):
            return self.table[first:last]
        return sinusoids(x.size(1), self.width, first, device=torch.device("cpu")).to(x)  # mps has no float64


class LearnedPositions(nn.Module):
    """Adds a learned vector for each position (Gehring et al. 2017, section 3.1)."""

    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.table = nn.Parameter(torch.empty(max_positions, width))
        nn.init.normal_(self.table, std=width**-0.5)

    def forward(self, x: Tensor, first: int = 0) -> Tensor:
        """Add the vectors of positions `first`, `first + 1`, … to x (B, T, D)."""
        return x + self.vectors(x, first)

    def vectors(self, x: Tensor, first: int = 0) -> Tensor:
        """The position vectors (T, width) of x (B, T, …)."""
        last = first + x.size(1)
        if last > self.max_positions:
            raise SaccadeError(
                f"a sequence of {last} tokens is longer than the {self.max_positions} learned positions of this model",
                hint="shorten the input, or train with sinusoidal positions or a larger --model.max-positions",
            )
        return self.table[first:last]


class NoPositions(nn.Module):
    """No position encoding: attention then treats its input as a set."""

    def forward(self, x: Tensor, first: int = 0) -> Tensor:
        """Return x unchanged."""
        return x


class ConcatenatedPositions(nn.Module):
    """Concatenates position vectors to x instead of adding them: content and position do not share dimensions."""

    def __init__(self, positions: SinusoidalPositions | LearnedPositions) -> None:
        super().__init__()
        self.positions = positions

    def forward(self, x: Tensor, first: int = 0) -> Tensor:
        """x (B, T, d) and position vectors (T, p) to (B, T, d + p)."""
        vectors = self.positions.vectors(x, first).to(x.dtype)  # (T, p)
        return torch.cat([x, vectors.expand(x.size(0), -1, -1)], -1)


def make_positions(kind: PositionKind, width: int, max_positions: int, use: PositionUse = "add") -> nn.Module:
    """The position encoding of a kind; `width` is the width of a position vector."""
    if kind == "none":
        return NoPositions()
    positions = LearnedPositions(width, max_positions) if kind == "learned" else SinusoidalPositions(width)
    return positions if use == "add" else ConcatenatedPositions(positions)
