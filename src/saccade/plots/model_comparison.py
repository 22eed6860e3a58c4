"""Plots that compare models: a score over source length, and a score over minutes of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.evaluation.bootstrap import Interval
from saccade.plots.colors import BORDER_COLOR, GRID_COLOR, line_style
from saccade.plots.figure import new_figure, save_figure
from saccade.plots.text_blocks import wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_OFFSET = 0.08  # between models, as a share of the distance between buckets: error bars must not overlap
SPREAD = 0.5  # of all models around the middle of a bucket; the borders are at 1


@dataclass(frozen=True)
class ScoreCurve:
    """Scores of a model over minutes of training, and why its training ended before its plan, if it did."""

    minutes: Sequence[float]
    values: Sequence[float]
    early_end: str | None = None


def plot_by_length(
    labels: Sequence[str],
    counts: Sequence[int],
    scores: Mapping[str, Sequence[Interval]],
    path: str | Path,
    *,
    models: Sequence[str] = (),
) -> None:
    """Plot BLEU by source length, one line per model with 95 % intervals; `counts` are sentences per bucket.

    The order of `models`, by default that of the scores, selects the colors.
    """
    styles = styles_of(models or list(scores))
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    step = min(MAX_OFFSET, SPREAD / max(1, len(scores) - 1))
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
            markersize=4.5,
            linewidth=1.3,
            elinewidth=0.9,
            capsize=2,
            label=name,
            **styles[name],
        )
    for border in range(len(labels) - 1):
        axes.axvline(border + 0.5, color=BORDER_COLOR, linewidth=0.8, zorder=0)
    ticks = [f"{label}\n{count:,} sentences" for label, count in zip(labels, counts, strict=True)]
    axes.set_xticks(range(len(labels)), ticks, fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    format_axes(axes, "BLEU by source length, with 95 % intervals", "source words")
    save_figure(figure, path)


def plot_by_minutes(curves: Mapping[str, ScoreCurve], path: str | Path, *, models: Sequence[str] = ()) -> None:
    """Plot validation BLEU over minutes of training, one line per model.

    A cross marks the end of a training that ended early; the legend gives its reason. The order of `models`, by default
    that of the curves, selects the colors.
    """
    styles = styles_of(models or list(curves))
    figure = new_figure(7.6, 4.2)
    axes = figure.add_subplot()
    for name, curve in curves.items():
        style = styles[name]
        label = name if curve.early_end is None else "\n".join([name, *wrap(f"× {curve.early_end}", 1.9, 8, 3)])
        axes.plot(curve.minutes, curve.values, markersize=4.5, linewidth=1.3, label=label, **style)
        if curve.early_end is not None:
            last = [curve.minutes[-1]], [curve.values[-1]]
            axes.plot(*last, marker="x", markersize=10, markeredgewidth=1.8, color=style["color"], linestyle="none")
    axes.set_xlim(left=0)
    format_axes(axes, "validation BLEU, greedy search", "minutes of training")
    save_figure(figure, path)


def styles_of(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The color and marker of each model."""
    return {name: line_style(index) for index, name in enumerate(models)}


def format_axes(axes: Axes, title: str, x_label: str) -> None:
    """Set title, labels, grid and legend."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel("BLEU", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color=GRID_COLOR, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
