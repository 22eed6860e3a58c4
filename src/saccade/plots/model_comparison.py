"""Plots that compare models: a score over source length, and a score over minutes of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.evaluation.bootstrap import Interval
from saccade.plots.figure import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito is safe for color-blind readers; the markers differ too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d31", "#7f7f7f")
MARKS = "osD^vPX*h"
OFFSET = 0.08  # between models, as a share of the distance between buckets: error bars must not overlap


def plot_by_length(
    labels: Sequence[str], counts: Sequence[int], scores: Mapping[str, Sequence[Interval]], path: str | Path
) -> None:
    """Plot BLEU by source length, one line per model with 95 % intervals; `counts` are sentences per bucket."""
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    step = min(OFFSET, 0.7 / max(1, len(scores)))
    for index, (name, parts) in enumerate(scores.items()):
        shift = (index - (len(scores) - 1) / 2) * step
        values = [part.value for part in parts]
        # The score of the full bucket may lie outside the interval, which comes from resamples.
        below = [max(0.0, part.value - part.low) for part in parts]
        above = [max(0.0, part.high - part.value) for part in parts]
        axes.errorbar(
            [bucket + shift for bucket in range(len(parts))],
            values,
            yerr=[below, above],
            color=COLORS[index % len(COLORS)],
            marker=MARKS[index % len(MARKS)],
            markersize=4.5,
            linewidth=1.3,
            elinewidth=0.9,
            capsize=2,
            label=name,
        )
    ticks = [f"{label}\n{count:,} sentences" for label, count in zip(labels, counts, strict=True)]
    axes.set_xticks(range(len(labels)), ticks, fontsize=8)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    format_axes(axes, "BLEU by source length, with 95 % intervals", "source words")
    save_figure(figure, path)


def plot_by_minutes(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: str | Path) -> None:
    """Plot validation BLEU over minutes of training, one line per model, from (minutes, values)."""
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    for index, (name, (minutes, values)) in enumerate(curves.items()):
        axes.plot(
            minutes,
            values,
            color=COLORS[index % len(COLORS)],
            marker=MARKS[index % len(MARKS)],
            markersize=4.5,
            linewidth=1.3,
            label=name,
        )
    axes.set_xlim(left=0)
    format_axes(axes, "validation BLEU, greedy search", "minutes of training")
    save_figure(figure, path)


def format_axes(axes: Axes, title: str, x_label: str) -> None:
    """Set title, labels, grid and legend."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel("BLEU", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
