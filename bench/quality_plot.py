"""Plot of BLEU over training time, one line per system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.plots.colors import BLUE, GREEN, NEUTRAL_COLOR, VERMILLION
from saccade.plots.figure import new_figure, save_figure

PUBLISHED = 41.02  # Wu et al. 2021: this architecture and this test set, trained on a GPU
NAMES = {"saccade": "Saccade", "joeynmt": "Joey NMT", "eole": "eole"}
COLORS = {"saccade": BLUE, "joeynmt": VERMILLION, "eole": GREEN}


def newest_runs(points: Sequence[Mapping[str, Any]]) -> dict[str, dict[float, float]]:
    """BLEU by minutes in the last run of each system; a run has one date, machine and commit, and ascending minutes."""
    lines: dict[str, dict[float, float]] = {}
    last: dict[str, tuple[Any, float]] = {}
    for point in points:
        system, minutes, run = point["system"], point["minutes"], (point["date"], point["machine"])
        before = last.get(system)
        if before is None or before[0] != run or before[1] >= minutes:
            lines[system] = {}
        lines[system][minutes] = point["bleu"]
        last[system] = run, minutes
    return lines


def plot_quality(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot BLEU over minutes for the newest run of each system."""
    lines = newest_runs(points)
    figure = new_figure(8, 4.5)
    panel = figure.add_subplot()
    for system, line in lines.items():
        minutes = sorted(line)
        values = [line[minute] for minute in minutes]
        panel.plot(minutes, values, marker="o", color=COLORS.get(system), label=NAMES.get(system, system))
        for minute, value in zip(minutes, values, strict=True):
            panel.annotate(f"{value:.1f}", (minute, value), xytext=(0, -15), textcoords="offset points", ha="center")
    panel.axhline(PUBLISHED, color=NEUTRAL_COLOR, linestyle="--", linewidth=1)
    panel.annotate(f"published {PUBLISHED}", (0.5, PUBLISHED), xytext=(0, 4), textcoords="offset points")
    panel.set(xlabel="minutes from raw text, two CPU cores", ylabel="BLEU, test_2016_flickr", xlim=(0, 64))
    panel.set_ylim(0, 46)
    panel.set_title("Multi30k English-German, lower-cased and tokenized, beam 5")
    panel.legend(loc="lower right")
    save_figure(figure, path)
