"""Bar plot of speed ratios: how many times faster Saccade is than each other system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.comparison import Comparison, Series
from saccade.plots.colors import BLUE, GRID_COLOR, NEUTRAL_COLOR, VERMILLION
from saccade.plots.figure import new_figure, save_figure

TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 30, 50, 100, 200)
FASTER_COLOR, SLOWER_COLOR = BLUE, VERMILLION


def plot_speed(found: dict[str, Any], path: Path) -> bool:
    """Plot one panel per series; false if there is nothing to compare."""
    series = [
        one
        for comparison in found["comparisons"]
        for one in Comparison.from_json(comparison).series
        if one.reference and len(one.values) > 1
    ]
    if not series:
        return False
    heights = [1.1 + 0.42 * len(compared(one)) for one in series]
    figure = new_figure(10, sum(heights) + 0.6)
    panels = figure.subplots(len(series), 1, squeeze=False, height_ratios=heights)
    machine = found["machine"]
    cores = f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}"
    figure.suptitle(f"How many times faster Saccade is — {found['date']}, {machine['cpu']}, {cores}")
    for panel, one in zip(panels[:, 0], series, strict=True):
        plot_series(panel, one)
    save_figure(figure, path)
    return True


def compared(series: Series) -> list[str]:
    """The systems of a series, without the reference."""
    return [name for name in series.values if name != series.reference and series.advantage(name)]


def plot_series(panel: Any, series: Series) -> None:
    """Bars start at 1 (equal speed); the range over rounds is a line; right of 1, Saccade is faster."""
    names = compared(series)
    for row, name in enumerate(names):
        advantage = series.advantage(name)
        assert advantage is not None
        median, low, high = advantage.median, advantage.low, advantage.high
        panel.barh(row, median - 1, left=1, height=0.6, color=FASTER_COLOR if median >= 1 else SLOWER_COLOR)
        panel.plot([low, high], [row, row], color=NEUTRAL_COLOR, linewidth=1.5)
        panel.annotate(
            f"{median:.2f}x",
            (max(high, 1.0), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    panel.axvline(1, color=NEUTRAL_COLOR, linewidth=1)
    panel.set_xscale("log")
    every = [value for name in names if (found := series.advantage(name)) for value in (found.low, found.high)]
    low, high = min(0.8, *every) / 1.1, max(1.25, *every) * 1.5
    panel.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    reference = series.spread(series.reference or "")
    value = f"{reference.median:,.0f}" if reference and reference.median >= 10 else f"{reference.median:.2f}"  # type: ignore[union-attr]
    panel.set_title(f"{series.title}: {series.reference} {value} {series.unit}", loc="left", fontsize=10)
    panel.grid(axis="x", color=GRID_COLOR)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
