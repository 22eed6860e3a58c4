"""Plot of BLEU over training time, one line per system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PUBLISHED = 41.02  # Wu et al. 2021: this architecture and this test set, trained on a GPU
NAMES = {"saccade": "Saccade", "joeynmt": "Joey NMT", "eole": "eole"}
COLOURS = {"saccade": "#1b6ca8", "joeynmt": "#c8743a", "eole": "#5a8f3c"}


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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = newest_runs(points)
    figure, panel = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for system, line in lines.items():
        minutes = sorted(line)
        values = [line[minute] for minute in minutes]
        panel.plot(minutes, values, marker="o", color=COLOURS.get(system), label=NAMES.get(system, system))
        for minute, value in zip(minutes, values, strict=True):
            panel.annotate(f"{value:.1f}", (minute, value), xytext=(0, -15), textcoords="offset points", ha="center")
    panel.axhline(PUBLISHED, color="#444444", linestyle="--", linewidth=1)
    panel.annotate(f"published {PUBLISHED}", (0.5, PUBLISHED), xytext=(0, 4), textcoords="offset points")
    panel.set(xlabel="minutes from raw text, two CPU cores", ylabel="BLEU, test_2016_flickr", xlim=(0, 64))
    panel.set_ylim(0, 46)
    panel.set_title("Multi30k English-German, lower-cased and tokenized, beam 5")
    panel.legend(loc="lower right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
