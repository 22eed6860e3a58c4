from __future__ import annotations

import numpy as np
import pytest

from plots.recorded_figures import record_figures
from saccade.evaluation.bootstrap import Interval
from saccade.plots import model_comparison
from saccade.plots.model_comparison import ScoreCurve, plot_by_length, plot_by_minutes


@pytest.fixture
def drawn(monkeypatch):
    """Figures that are recorded instead of saved."""
    return record_figures(monkeypatch, model_comparison)


def test_one_line_per_model_with_error_bars_at_its_intervals(drawn) -> None:
    scores = {"a": [Interval(20, 18, 23), Interval(10, 8, 11)], "b": [Interval(30, 29, 31), Interval(25, 26, 27)]}
    plot_by_length(["1–20", "21+"], [400, 30], scores, "unused.png")
    axes = drawn[0].axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1–20\n400 sentences", "21+\n30 sentences"]
    ends = [[point[1] for point in bar] for one in axes.containers for bar in one[2][0].get_segments()]
    # A score outside of its interval has no bar on that side.
    np.testing.assert_allclose(ends, [[18, 23], [8, 11], [29, 31], [25, 27]])
    positions = [one[0].get_xdata()[0] for one in axes.containers]
    assert positions[0] < 0 < positions[1]


def test_one_curve_per_model_over_minutes(drawn) -> None:
    plot_by_minutes({"a": ScoreCurve([1.0, 2.0], [5.0, 9.0]), "b": ScoreCurve([1.5], [4.0])}, "unused.png")
    lines = drawn[0].axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[5.0, 9.0], [4.0]]
    assert drawn[0].axes[0].get_xlim()[0] == 0


def test_all_points_are_within_their_bucket(drawn) -> None:
    models = {f"model {number}": [Interval(10, 8, 12)] * 3 for number in range(12)}
    plot_by_length(["1–10", "11–20", "21+"], [40, 30, 20], models, "unused.png")
    axes = drawn[0].axes[0]
    positions = np.array([one[0].get_xdata() for one in axes.containers])
    assert np.abs(positions - np.arange(3)).max() < 0.3
    assert len({round(position, 6) for position in positions[:, 0]}) == len(models)
    borders = [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2]
    assert borders == [0.5, 1.5]


def test_a_run_that_ended_early_is_marked_with_its_reason(drawn) -> None:
    curves = {"a": ScoreCurve([1.0, 2.0], [5.0, 9.0], "failed: the loss is NaN"), "b": ScoreCurve([1.5], [4.0])}
    plot_by_minutes(curves, "unused.png")
    axes = drawn[0].axes[0]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in crosses] == [([2.0], [9.0])]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert " ".join(labels[0].split()) == "a × failed: the loss is NaN"
    assert labels[1] == "b"


def test_a_model_has_the_same_color_in_all_plots(drawn) -> None:
    plot_by_length(["1+"], [3], {"b": [Interval(1, 1, 1)]}, "unused.png", models=["a", "b"])
    plot_by_minutes({"a": ScoreCurve([1], [2]), "b": ScoreCurve([1], [3])}, "unused.png", models=["a", "b"])
    by_length = drawn[0].axes[0].containers[0][0]
    assert by_length.get_color() == drawn[1].axes[0].get_lines()[1].get_color()
