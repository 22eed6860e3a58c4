"""Training curves: the metrics.csv of a run as one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.plots.colors import BLUE, BORDER_COLOR, GRAY, GRID_COLOR, NEUTRAL_COLOR, VERMILLION
from saccade.plots.figure import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, float | str]

TRAIN_COLOR, VALID_COLOR = BLUE, VERMILLION
PROPER_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


@dataclass(frozen=True)
class Curve:
    """One column of metrics.csv over the step."""

    label: str
    column: str
    color: str
    marks: bool = False  # mark each point, for columns with few values
    best: bool = False  # mark the best value


@dataclass(frozen=True)
class Panel:
    """Curves that share one scale."""

    title: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False
    from_zero: bool = False  # start the y axis at 0, so that small changes stay small


@dataclass(frozen=True)
class Points:
    """The points of a curve."""

    steps: list[float]
    values: list[float]


def plot_curves(metrics_csv_rows: Sequence[Row], path: str | Path) -> None:
    """Plot loss, validation scores, learning rate and speed of a run; missing values are skipped."""
    panels = panels_for(metrics_csv_rows)
    across = 2 if len(panels) <= 4 else 3
    down = -(-len(panels) // across)
    figure = new_figure(4.6 * across, 2.9 * down)
    grid = figure.subplots(down, across, squeeze=False)
    for panel, axes in zip(panels, grid.flat, strict=False):
        draw_panel(axes, panel, metrics_csv_rows)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    save_figure(figure, path)


def panels_for(rows: Sequence[Row]) -> list[Panel]:
    """The panels for these columns, one for each validation score."""
    columns = dict.fromkeys(column for row in rows for column in row)
    scores = [column for column in columns if column.startswith("valid_") and column != "valid_loss"]
    # The loss of training may include label smoothing and other terms; its likelihood is comparable with validation.
    training = "nll" if "nll" in columns else "loss"
    curves = (
        Curve("training", training, TRAIN_COLOR),
        Curve("validation", "valid_loss", VALID_COLOR, marks=True, best=True),
    )
    loss = [Panel("loss per token, without label smoothing" if training == "nll" else "loss", curves)]
    if any(number(row.get("loss")) != number(row.get("nll")) for row in rows if row.get("nll")):
        loss.append(Panel("training objective, with all its terms", (Curve("objective", "loss", TRAIN_COLOR),)))
    return [
        *loss,
        *(score_panel(column) for column in scores or ["valid_score"]),
        Panel("learning rate", (Curve("learning rate", "learning_rate", NEUTRAL_COLOR),), from_zero=True),
        Panel("tokens per second", (Curve("tokens per second", "tokens_per_second", NEUTRAL_COLOR),), from_zero=True),
    ]


def score_panel(column: str) -> Panel:
    """The panel of one validation score."""
    name = column.removeprefix("valid_").replace("_", " ").replace("-", " ")
    curve = Curve("validation", column, VALID_COLOR, marks=True, best=True)
    # Perplexity falls by orders of magnitude in the first steps; on a linear scale the rest would be flat.
    return Panel(f"validation {PROPER_NAMES.get(name, name)}", (curve,), logarithmic=name == "perplexity")


def draw_panel(axes: Axes, panel: Panel, rows: Sequence[Row]) -> None:
    """Draw the curves of a panel, or a note if they have no values yet."""
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    drawn = 0
    for curve in panel.curves:
        points = points_of(rows, curve.column, positive=panel.logarithmic)
        if points.steps:
            draw_curve(axes, curve, points)
            drawn += 1
    if not drawn:
        axes.text(0.5, 0.5, "no values yet", transform=axes.transAxes, ha="center", va="center", color=GRAY)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color(BORDER_COLOR)
        return
    axes.margins(y=0.15)
    if panel.logarithmic:
        logarithmic_axis(axes)
    if panel.from_zero:
        axes.set_ylim(0, 1.1 * axes.dataLim.ymax or 1)
    elif axes.dataLim.ymin >= 0 > axes.get_ylim()[0]:
        axes.set_ylim(bottom=0)  # the margin must not suggest negative values
    axes.set_xlabel("step", fontsize=8)
    axes.grid(color=GRID_COLOR, linewidth=0.6)
    axes.set_axisbelow(True)
    if drawn > 1:
        axes.legend(fontsize=8, frameon=False)


def logarithmic_axis(axes: Axes) -> None:
    """Set a logarithmic scale with ticks at 1, 2 and 5 times each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_curve(axes: Axes, curve: Curve, points: Points) -> None:
    """Draw one line, or a dot for a single point."""
    marked = curve.marks or len(points.steps) == 1
    axes.plot(
        points.steps,
        points.values,
        color=curve.color,
        linewidth=1.3,
        marker="o" if marked else None,
        markersize=3,
        label=curve.label,
    )
    if curve.best:
        choose = min if lower_is_better(curve.column) else max
        index = choose(range(len(points.values)), key=points.values.__getitem__)
        step, value = points.steps[index], points.values[index]
        axes.plot([step], [value], marker="o", markersize=7, markerfacecolor="none", color=curve.color)
        axes.annotate(
            f"{value:.4g}",
            (step, value),
            textcoords="offset points",
            xytext=(0, 7),
            ha="center",
            fontsize=8,
            color=curve.color,
        )


def points_of(rows: Sequence[Row], column: str, *, positive: bool = False) -> Points:
    """Steps and finite values of a column; a row without a step uses its index."""
    points = Points([], [])
    for index, row in enumerate(rows):
        step, value = number(row.get("step", index)), number(row.get(column, math.nan))
        if math.isfinite(step) and math.isfinite(value) and (value > 0 or not positive):
            points.steps.append(step)
            points.values.append(value)
    return points


def number(cell: float | str | None) -> float:
    """The number in a CSV cell; NaN if it is empty or not a number."""
    try:
        return math.nan if cell is None else float(cell)
    except ValueError:
        return math.nan


def lower_is_better(column: str) -> bool:
    """Whether lower values of a validation column are better: losses and error rates."""
    return column.replace("-", "_").rsplit("_", 1)[-1] in ("loss", "perplexity", "error", "ter")
