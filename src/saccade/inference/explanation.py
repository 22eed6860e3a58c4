"""What an explanation holds: the texts, their pieces, and every attention of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.interface import Attention


@dataclass(frozen=True)
class Explanation:
    """Where a model looked: rows of the alignment are target pieces, columns are source pieces."""

    source: str
    target: str
    source_pieces: tuple[str, ...]
    target_pieces: tuple[str, ...]
    attention: tuple[Attention, ...]  # batch of one
    alignment: Tensor  # (T, S)

    def to_json(self) -> dict[str, Any]:
        """Plain data: texts, pieces and the alignment."""
        return {
            "source": self.source,
            "target": self.target,
            "source_pieces": list(self.source_pieces),
            "target_pieces": list(self.target_pieces),
            "alignment": [[round(weight, 6) for weight in row] for row in self.alignment.tolist()],
        }


def alignment_of(attention: Sequence[Attention]) -> Tensor:
    """The mean over all heads of all layers of the cross-attention of a batch of one: (T, S)."""
    crosses = [record.weights for record in attention if record.kind == "cross"]
    if not crosses:
        raise SaccadeError("this model has no cross-attention, so there is no alignment to show")
    return torch.cat(crosses, dim=1).mean(1)[0]  # an ensemble's layers may differ in their number of heads
