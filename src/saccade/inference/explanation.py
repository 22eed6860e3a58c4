"""Explanation of one translation: texts, pieces and all attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.inference.words import PieceWords, merge_keys, merge_queries
from saccade.interface import Attention
from saccade.models.registry import FAMILIES, load_family


@dataclass(frozen=True)
class Explanation:
    """The attention weights of one source and target."""

    source: str
    target: str
    source_pieces: tuple[str, ...]
    target_pieces: tuple[str, ...]
    attention: tuple[Attention, ...]  # batch of one
    alignment: Tensor  # (T, S): target pieces, source pieces
    source_words: PieceWords
    target_words: PieceWords

    def merge_words(self) -> Explanation:
        """Return the cross-attention between words instead of pieces; rows still sum to 1.

        A weight is the sum over the pieces of the source word and the mean over the pieces of the output word.
        """
        if self.alignment.size(1) != len(self.source_pieces):
            raise SaccadeError(
                "the cross-attention of this model does not cover the source pieces one by one",
                hint="show its pieces, not words",
            )

        def merge(weights: Tensor) -> Tensor:
            return merge_queries(merge_keys(weights, self.source_words), self.target_words)

        return replace(
            self,
            source_pieces=self.source_words.words,
            target_pieces=self.target_words.words,
            attention=tuple(
                replace(record, weights=merge(record.weights)) for record in self.attention if record.kind == "cross"
            ),
            alignment=merge(self.alignment),
            source_words=self.source_words.merged(),
            target_words=self.target_words.merged(),
        )

    def to_json(self) -> dict[str, Any]:
        """Texts, pieces and alignment as plain data."""
        return {
            "source": self.source,
            "target": self.target,
            "source_pieces": list(self.source_pieces),
            "target_pieces": list(self.target_pieces),
            "alignment": [[round(weight, 6) for weight in row] for row in self.alignment.tolist()],
        }


def mean_cross_attention(attention: Sequence[Attention]) -> Tensor | None:
    """Return the mean over all heads of all cross-attention layers (B, T, S); None if there are none."""
    layers = [record.weights.float() for record in attention if record.kind == "cross"]
    return torch.cat(layers, dim=1).mean(1) if layers else None  # layers of an ensemble differ in their heads


def alignment_of(attention: Sequence[Attention]) -> Tensor:
    """Return the alignment (T, S) of a batch of one: the mean of all cross-attention."""
    alignment = mean_cross_attention(attention)
    if alignment is None:
        families = [name for name in FAMILIES if "cross" in load_family(name).attention]
        raise SaccadeError(
            "this model has no cross-attention, so there is nothing to show or align by",
            hint=f"train a model that has it: {', '.join(families)}",
        )
    return alignment[0]
