from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from plots.example_attention import SOURCE, TARGET, WEIGHTS
from plots.recorded_figures import record_figures
from saccade.errors import SaccadeError
from saccade.plots import heat_map_grid
from saccade.plots.attention_map import column_count, plot_attention, plot_heads, plot_models
from saccade.plots.heat_map_grid import HeatMap

TITLE = {"source": "the big cat sleeps .", "output": "die Katze schläft ."}


@pytest.fixture
def drawn(monkeypatch):
    """Figures that are recorded instead of saved."""
    return record_figures(monkeypatch, heat_map_grid)


def maps(figure):
    """The axes with weights, without the color scale."""
    return [axes for axes in figure.axes if axes.get_xlabel() or len(axes.get_xticks())]


def scale(figure):
    """The axes of the color scale."""
    return figure.axes[-1]


def svg_texts(path: Path) -> list[str]:
    """The texts of an SVG file."""
    return [
        "".join(text.itertext()).strip() for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_one_map_with_titles_labels_and_weights_in_its_cells(tmp_path: Path) -> None:
    plot_attention(SOURCE, TARGET, WEIGHTS, tmp_path / "a.svg", title=TITLE)
    found = svg_texts(tmp_path / "a.svg")
    assert {*SOURCE, *TARGET, "source", "output", "0.95", "0.66"} <= set(found)
    assert "source: the big cat sleeps ." in found
    assert "output: die Katze schläft ." in found
    assert found.count("0.00") == 0  # weights that round to zero are not written


def test_small_cells_have_no_weights_in_them(tmp_path: Path) -> None:
    plot_attention(SOURCE * 5, TARGET, np.full((4, 25), 0.04), tmp_path / "a.svg")
    assert not [text for text in svg_texts(tmp_path / "a.svg") if re.fullmatch(r"0\.\d\d", text)]


def test_colors_are_on_a_fixed_scale(tmp_path: Path) -> None:
    plot_attention(SOURCE, TARGET, np.eye(4, 5), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        pixels = np.asarray(picture.convert("RGBA")).astype(int)
    assert (pixels[..., 3] == 255).all()  # an opaque background: readable on a dark page
    assert (pixels[0, 0] == 255).all()
    darkest = (pixels[..., :3] == (8, 48, 107)).all(axis=-1)  # the end of the color map
    cell = (300 * 0.36) ** 2
    assert 4 * 0.8 * cell < darkest.sum() < 4 * 1.1 * cell
    plot_attention(SOURCE, TARGET, np.full((4, 5), 0.2), tmp_path / "b.png")
    with Image.open(tmp_path / "b.png") as picture:
        uniform = np.asarray(picture.convert("RGB")).astype(int)
    assert (uniform == (8, 48, 107)).all(axis=-1).sum() < 0.2 * cell  # only the end of the scale


@pytest.mark.parametrize("lengths", [(5,), (4, 8)])
def test_the_weight_of_uniform_attention_is_marked_on_the_scale(lengths: tuple[int, ...], drawn) -> None:
    plot_models([HeatMap(["x"] * n, ["y"], np.full((1, n), 1 / n)) for n in lengths], "unused.png")
    marks = sorted(line.get_ydata()[0] for line in scale(drawn[0]).get_lines())
    assert marks == pytest.approx(sorted(1 / n for n in lengths))
    assert scale(drawn[0]).images[0].get_clim() == (0, 1)
    note = " ".join(texts(drawn[0])[-2:])
    assert note == ("uniform 1/5 = 0.2" if len(lengths) == 1 else "uniform 1/8 to 1/4")


def test_every_head_has_a_panel_with_labels_and_layers_may_differ(drawn) -> None:
    plot_heads(SOURCE, TARGET, {0: np.stack([WEIGHTS] * 3), 1: WEIGHTS[None]}, "unused.png", title=TITLE)
    panels = maps(drawn[0])
    assert len(panels) == 4
    for axes in panels:
        assert [label.get_text() for label in axes.get_xticklabels()] == SOURCE
        assert [label.get_text() for label in axes.get_yticklabels()] == TARGET
        assert axes.images[0].get_clim() == (0, 1)
    assert [text for text in texts(drawn[0]) if text.startswith("layer")] == [
        *(f"layer 0, head {head}" for head in range(3)),
        "layer 1, head 0",
    ]


def test_long_texts_have_fewer_labels_of_readable_size(drawn) -> None:
    long = [f"piece{index}" for index in range(200)]
    plot_heads(long, long, {0: np.full((2, 200, 200), 1 / 200)}, "unused.png")
    for axes in maps(drawn[0]):
        labels = axes.get_xticklabels()
        assert 20 < len(labels) < 100
        assert all(
            label.get_text() == f"piece{position}" for label, position in zip(labels, axes.get_xticks(), strict=True)
        )
        assert min(label.get_fontsize() for label in labels) >= heat_map_grid.MIN_LABEL_FONT


def test_models_have_equal_cells_with_score_and_output(drawn) -> None:
    panels = [
        HeatMap(["x"] * 3, ["y"] * size, np.full((size, 3), size / 10), f"model {size}, BLEU 20.0", f"output {size}")
        for size in (1, 2, 4, 3)
    ]
    plot_models(panels, "unused.png", title={"source": "x x x"})
    figure = drawn[0]
    inches = figure.get_size_inches()
    for axes, panel in zip(maps(figure), panels, strict=True):
        width, height = np.array(axes.get_position().size) * inches
        assert width / 3 == pytest.approx(height / len(panel.target)) == pytest.approx(0.2)
        assert axes.images[0].get_clim() == (0, 1)
    assert {"source: x x x", "model 4, BLEU 20.0", "output 4"} <= set(texts(figure))


def test_panels_do_not_overlap(drawn) -> None:
    names = ["a", "a preset with a very long name", "b", "c", "d"]
    plot_models([HeatMap(SOURCE, TARGET, WEIGHTS, name, "output " * 12) for name in names], "unused.png")
    figure = drawn[0]
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in maps(figure)] + [
        text.get_window_extent(renderer) for text in figure.texts if text.get_text()
    ]
    for index, first in enumerate(boxes):
        assert first.x0 >= 0
        assert first.y0 >= 0
        assert first.x1 <= figure.bbox.width
        assert first.y1 <= figure.bbox.height
        for second in boxes[index + 1 :]:
            across = min(first.x1, second.x1) - max(first.x0, second.x0)
            down = min(first.y1, second.y1) - max(first.y0, second.y0)
            assert across <= 1 or down <= 3  # pixels; the lines of a caption touch


def test_the_last_row_of_a_grid_is_almost_full() -> None:
    assert [column_count(count) for count in range(1, 10)] == [1, 2, 3, 4, 3, 3, 4, 4, 3]
    assert all(-count % column_count(count) <= 2 for count in range(1, 40))


def test_any_labels_can_be_plotted_and_the_figure_grows_with_them(tmp_path: Path) -> None:
    odd = ["$5", "$", "", "a" * 300, "{x}^_\\frac", "\x1b[2J", "<&>"]
    title = {"source": "costs $5 or $6, " * 30, "output": "\x1b\x00<&>\ud800" + "x" * 500}
    for suffix in ("png", "svg", "pdf"):
        plot_attention(odd, ["$x_"], np.full((1, 7), 1 / 7), tmp_path / f"odd.{suffix}", title=title)
    plot_attention(["a"], ["b"], np.ones((1, 1)), tmp_path / "small.png")
    with Image.open(tmp_path / "small.png") as small, Image.open(tmp_path / "odd.png") as large:
        assert large.width > small.width
        assert large.height > small.height
    assert {"$5", "{x}^_\\frac", "<&>"} <= set(svg_texts(tmp_path / "odd.svg"))


def test_right_to_left_texts_are_isolated(tmp_path: Path) -> None:
    hebrew = "שלום"
    plot_attention(
        [hebrew, "x"], ["y"], np.ones((1, 2)), tmp_path / "a.svg", title={"source": f"{hebrew}, x (y).", "output": "y"}
    )
    found = svg_texts(tmp_path / "a.svg")
    assert f"\u2068{hebrew}\u2069" in found
    assert f"source: \u2068{hebrew}, x (y).\u2069" in found
    assert "output: y" in found


def test_nothing_to_plot_is_an_error(tmp_path: Path) -> None:
    for layers in ({}, {0: np.zeros((0, 4, 5))}):
        with pytest.raises(SaccadeError):
            plot_heads(SOURCE, TARGET, layers, tmp_path / "none.png")
    with pytest.raises(SaccadeError):
        plot_models([], tmp_path / "none.png")
    with pytest.raises(SaccadeError):
        plot_attention(SOURCE, TARGET, WEIGHTS.T, tmp_path / "none.png")
    assert not list(tmp_path.iterdir())
