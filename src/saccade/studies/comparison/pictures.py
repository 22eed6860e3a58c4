"""The pictures of a comparison: BLEU by length, BLEU by minutes, and the alignments of one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.plots.attention_map_grid import Panel, plot_side_by_side
from saccade.plots.model_comparison import plot_by_length, plot_by_minutes
from saccade.studies.comparison.standings import Standings


class Picture(NamedTuple):
    """A PNG file beside the report, and what it shows."""

    path: Path
    caption: str


def draw_pictures(found: Standings, output: Path) -> list[Picture]:
    """Draw what there are figures for; a picture of an earlier state of the comparison is removed."""
    by_length, by_minutes, alignments = (output / f"{name}.png" for name in ("by-length", "by-minutes", "alignments"))
    for path in (by_length, by_minutes, alignments):
        path.unlink(missing_ok=True)
    pictures: list[Picture] = []
    scores = {row.entry.name: row.by_length for row in found.rows if row.bleu is not None}
    if scores:
        counts = [len(bucket.rows) for bucket in found.buckets]
        plot_by_length([str(bucket) for bucket in found.buckets], counts, scores, by_length)
        pictures.append(Picture(by_length, "BLEU by the number of source words, with 95 % intervals."))
    curves = {row.entry.name: (row.curve.minutes, row.curve.values) for row in found.rows if row.curve}
    if curves:
        plot_by_minutes(curves, by_minutes)
        caption = "Validation BLEU (greedy search, part of the validation data) against minutes of training."
        pictures.append(Picture(by_minutes, caption))
    panels = [
        Panel(row.entry.name, shown.source_pieces, shown.target_pieces, np.array(shown.weights))
        for row in found.rows
        if (shown := row.alignment) is not None and shown.fault is None
    ]
    if panels:
        sentence = next(row.alignment.sentence for row in found.rows if row.alignment)
        plot_side_by_side(panels, alignments, title=sentence)
        none = [row.entry.name for row in found.rows if not row.entry.attends]
        rest = f" Without cross-attention: {', '.join(none)}." if none else ""
        caption = f"Where each model looks while it translates “{sentence}”: mean over heads and layers.{rest}"
        pictures.append(Picture(alignments, caption))
    return pictures
