"""An explanation's alignment for people and for files: drawn, plotted, or as pairs of places."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saccade.inference.explanation import Explanation


def draw(explanation: Explanation) -> str:
    """The alignment for the terminal; in colour if it is one and NO_COLOR is not set."""
    from saccade.plots.attention_map import draw_terminal

    return draw_terminal(
        explanation.source_pieces,
        explanation.target_pieces,
        explanation.alignment.cpu().numpy(),
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    )


def save_png(explanation: Explanation, path: Path) -> None:
    """The alignment as one heat map."""
    from saccade.plots.attention_map import plot_png

    plot_png(
        explanation.source_pieces,
        explanation.target_pieces,
        explanation.alignment.cpu().numpy(),
        path,
        title=f"{explanation.source} → {explanation.target}",
    )


def save_heads_png(explanation: Explanation, path: Path) -> None:
    """Every head of every cross-attention as a heat map of its own."""
    from saccade.plots.attention_map import plot_heads_png

    layers = {
        record.layer: record.weights[0].cpu().numpy() for record in explanation.attention if record.kind == "cross"
    }
    plot_heads_png(
        explanation.source_pieces,
        explanation.target_pieces,
        layers,
        path,
        title=f"{explanation.source} → {explanation.target}",
    )


def hard_alignment(explanation: Explanation) -> str:
    """For each target piece the source piece with most weight, as `source-target` places from 0: "0-0 1-2"."""
    weights = explanation.alignment[:-1, :-1]  # without the two ends, which are no pieces of the texts
    return " ".join(f"{source}-{target}" for target, source in enumerate(weights.argmax(dim=1).tolist()))
