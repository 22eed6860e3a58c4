"""Plot of time and peak memory over length, with logarithmic axes: a power law is a straight line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.plots.colors import GRAY, GRID_COLOR, NEUTRAL_COLOR, line_style
from saccade.plots.figure import new_figure, save_figure
from saccade.studies.complexity.findings import Cost, Findings, costs, memory, seconds
from saccade.studies.complexity.layers import LAYERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (4.6, 3.4)  # of one panel
LEGEND = 0.8  # inches below the panels
STYLES = {name: line_style(index) for index, name in enumerate(LAYERS)}  # the same for any selection of layers
GUIDES = {1: ("n", "--"), 2: ("n²", ":")}  # names and line styles of the guide lines, by their exponent


def plot_costs(findings: Findings, path: Path) -> None:
    """Plot one row of panels per width: time on the left, memory on the right."""
    widths = findings.plan.widths
    figure = new_figure(2 * INCHES[0], INCHES[1] * len(widths) + LEGEND)
    grid = figure.subplots(len(widths), 2, squeeze=False)
    for width, (left, right) in zip(widths, grid, strict=True):
        draw_panel(left, findings, width, lambda found: scaled(seconds(found), 1e3), f"milliseconds, d = {width}")
        draw_panel(right, findings, width, lambda found: scaled(memory(found), 1e-6), f"peak MB, d = {width}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path)


def draw_panel(axes: Axes, findings: Findings, width: int, cost: Cost, title: str) -> None:
    """Draw one line per measured layer, and guide lines that grow as n and n²."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    names = findings.plan.layers
    lines = {name: costs(findings.curve(name, width), cost, lambda found: found.length) for name in names}
    for name, points in lines.items():
        if points:
            axes.plot(
                list(points),
                list(points.values()),
                markersize=4,
                linewidth=1.3,
                label=LAYERS[name].title,
                **STYLES[name],
            )
    if not any(lines.values()):
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GRAY)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    draw_guides(axes, findings.plan.lengths, [value for points in lines.values() for value in points.values()])
    axes.xaxis.set_major_locator(FixedLocator(sorted(findings.plan.lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("sequence length n", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="x", rotation=45)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID_COLOR, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_guides(axes: Axes, lengths: Iterable[int], values: list[float]) -> None:
    """Draw lines proportional to n and n² up to the largest cost, without a change of the limits of the axes."""
    first, last = min(lengths), max(lengths)
    if first == last or not values:
        return
    limits = axes.get_ylim()
    for exponent, (name, style) in GUIDES.items():
        end = max(values)
        start = end * (first / last) ** exponent
        axes.plot(
            [first, last], [start, end], style, color=NEUTRAL_COLOR, linewidth=1, label=f"guide: {name}", zorder=1
        )
    axes.set_ylim(limits)


def scaled(value: float | None, factor: float) -> float | None:
    """Convert a value to another unit; None if it is missing or has no logarithm."""
    return None if value is None or value <= 0 else factor * value
