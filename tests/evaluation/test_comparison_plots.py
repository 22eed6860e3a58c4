from __future__ import annotations

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import Interval
from saccade.plots import attention_map_grid as alignment_comparison
from saccade.plots import model_comparison as comparison_plots
from saccade.plots.attention_map_grid import Panel, plot_attention_grid
from saccade.plots.model_comparison import plot_by_length, plot_by_minutes


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would have been saved."""
    figures = []
    for module in (comparison_plots, alignment_comparison):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    return figures


def test_a_line_a_model_with_the_ends_of_its_intervals(drawn) -> None:
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


def test_scores_against_minutes(drawn) -> None:
    plot_by_minutes({"a": ([1.0, 2.0], [5.0, 9.0]), "b": ([1.5], [4.0])}, "unused.png")
    lines = drawn[0].axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[5.0, 9.0], [4.0]]
    assert drawn[0].axes[0].get_xlim()[0] == 0


def test_alignments_side_by_side_on_one_scale(drawn) -> None:
    panels = [Panel(str(size), ["x"] * 3, ["y"] * size, np.full((size, 3), size / 10)) for size in (1, 2, 4, 3)]
    plot_attention_grid(panels, "unused.png", title="x x x")
    pictures = [axes for axes in drawn[0].axes if axes.images]
    assert [axes.get_title() for axes in pictures] == ["1", "2", "4", "3"]
    assert {axes.images[0].get_clim() for axes in pictures} == {(0, 0.4)}
    assert [axes.images[0].get_array().shape for axes in pictures] == [(1, 3), (2, 3), (4, 3), (3, 3)]


def test_pictures_are_png_files(tmp_path) -> None:
    plot_attention_grid([Panel("a", ["$x"], ["y$"], np.ones((1, 1)))], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SaccadeError, match="alignment"):
        plot_attention_grid([], tmp_path / "none.png")
