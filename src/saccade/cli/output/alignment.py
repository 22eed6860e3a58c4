"""The attention weights of an explanation: drawn in the terminal, plotted, or as alignment pairs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saccade.inference.explanation import Explanation


def draw(explanation: Explanation) -> str:
    """Return the attention map as text; in color on a terminal unless NO_COLOR is set."""
    from saccade.plots.terminal_attention_map import draw_terminal

    return draw_terminal(
        explanation.source_pieces,
        explanation.target_pieces,
        explanation.alignment.cpu().numpy(),
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    )


def save_plot(explanation: Explanation, path: Path) -> None:
    """Plot the attention weights, averaged over heads, as one heat map."""
    from saccade.plots.attention_map import plot_attention

    plot_attention(
        explanation.source_pieces,
        explanation.target_pieces,
        explanation.alignment.cpu().numpy(),
        path,
        title=title_of(explanation),
    )


def save_heads_plot(explanation: Explanation, path: Path) -> None:
    """Plot each head of each cross-attention layer as a separate heat map."""
    from saccade.plots.attention_map import plot_heads

    layers = {
        record.layer: record.weights[0].cpu().numpy() for record in explanation.attention if record.kind == "cross"
    }
    plot_heads(explanation.source_pieces, explanation.target_pieces, layers, path, title=title_of(explanation))


def title_of(explanation: Explanation) -> dict[str, str]:
    """Return the two lines of a title."""
    return {"source": explanation.source, "output": explanation.target}


def hard_alignment(explanation: Explanation) -> list[tuple[int, int]]:
    """Return the source position with the largest weight for each target position, as pairs from 0."""
    weights = explanation.alignment[:-1, :-1]  # without the end-of-sequence tokens
    return [(source, target) for target, source in enumerate(weights.argmax(dim=1).tolist())]
