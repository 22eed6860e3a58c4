"""Pictures of several models side by side: a score by source length, and a score by minutes of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.evaluation.bootstrap import Interval
from saccade.plots.figure import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours of Okabe and Ito, which people with any colour vision tell apart; the marks differ too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d31", "#7f7f7f")
MARKS = "osD^vPX*h"
APART = 0.08  # of the distance between two buckets: bars of several models must not hide each other


def plot_by_length(
    labels: Sequence[str], counts: Sequence[int], scores: Mapping[str, Sequence[Interval]], path: str | Path
) -> None:
    """BLEU by source length: a line a model with its 95 % intervals; `counts` are the sentences of each bucket."""
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    step = min(APART, 0.7 / max(1, len(scores)))
    for place, (name, parts) in enumerate(scores.items()):
        shift = (place - (len(scores) - 1) / 2) * step
        values = [part.value for part in parts]
        # The score of the whole need not lie between the ends: those come from resamples.
        below = [max(0.0, part.value - part.low) for part in parts]
        above = [max(0.0, part.high - part.value) for part in parts]
        axes.errorbar(
            [bucket + shift for bucket in range(len(parts))],
            values,
            yerr=[below, above],
            color=COLORS[place % len(COLORS)],
            marker=MARKS[place % len(MARKS)],
            markersize=4.5,
            linewidth=1.3,
            elinewidth=0.9,
            capsize=2,
            label=name,
        )
    ticks = [f"{label}\n{count:,} sentences" for label, count in zip(labels, counts, strict=True)]
    axes.set_xticks(range(len(labels)), ticks, fontsize=8)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    finish(axes, "BLEU by source length, with 95 % intervals", "source words")
    save_figure(figure, path)


def plot_by_minutes(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: str | Path) -> None:
    """Validation BLEU against minutes of training: a line a model, from (minutes, values)."""
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    for place, (name, (minutes, values)) in enumerate(curves.items()):
        axes.plot(
            minutes,
            values,
            color=COLORS[place % len(COLORS)],
            marker=MARKS[place % len(MARKS)],
            markersize=4.5,
            linewidth=1.3,
            label=name,
        )
    axes.set_xlim(left=0)
    finish(axes, "validation BLEU, greedy search", "minutes of training")
    save_figure(figure, path)


def finish(axes: Axes, title: str, across: str) -> None:
    """What both pictures have in common."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel("BLEU", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
