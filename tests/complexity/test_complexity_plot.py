from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from plots.recorded_figures import record_figures
from saccade.studies.complexity import plot
from saccade.studies.complexity.findings import Findings
from saccade.studies.complexity.layers import LAYERS, LayerSizes
from saccade.studies.complexity.measurement import Measurement, Timing
from saccade.studies.complexity.plot import STYLES, plot_costs
from saccade.studies.complexity.series import MeasurementPlan

LENGTHS = (64, 128, 256)


def findings(layers: tuple[str, ...], *, memory: bool = True) -> Findings:
    """Made-up measurements: time grows as n², memory as n."""
    measurements = [
        Measurement(
            layer, 16, n, 0, Timing(n**2 / 2, 0), Timing(n**2 / 2, 0), 3, *([n * 10**6] * 2 if memory else [None] * 2)
        )
        for layer in layers
        for n in LENGTHS
    ]
    return Findings(MeasurementPlan(layers, LENGTHS, (16,), LayerSizes(), 0.1, 10**9), tuple(measurements), {}, {})


@pytest.fixture
def drawn(monkeypatch):
    """Figures that are recorded instead of saved."""
    return record_figures(monkeypatch, plot)


def test_guide_lines_grow_as_n_and_n_squared(drawn) -> None:
    plot_costs(findings(tuple(LAYERS)), "unused.png")
    for axes in drawn[0].axes:
        guides = {line.get_label(): line for line in axes.get_lines() if line.get_label().startswith("guide")}
        assert set(guides) == {"guide: n", "guide: n²"}
        for name, exponent in (("guide: n", 1), ("guide: n²", 2)):
            (x1, x2), (y1, y2) = guides[name].get_data()
            assert math.log(y2 / y1) / math.log(x2 / x1) == pytest.approx(exponent)
        low, high = axes.get_ylim()
        measured = [y for line in axes.get_lines() if line not in guides.values() for y in line.get_ydata()]
        assert low > 0.1 * min(measured)  # guide lines do not stretch the axis
        assert high < 10 * max(measured)


def test_a_layer_has_one_color_in_any_selection(drawn) -> None:
    assert len({style["color"] for style in STYLES.values()}) == len(LAYERS)
    plot_costs(findings(("recurrent",)), "unused.png")
    assert drawn[0].axes[0].get_lines()[0].get_color() == STYLES["recurrent"]["color"]


def test_memory_that_is_not_measured_is_said(tmp_path) -> None:
    plot_costs(findings(("fused",), memory=False), tmp_path / "a.svg")
    texts = [
        "".join(text.itertext()) for text in ElementTree.parse(tmp_path / "a.svg").iter() if text.tag.endswith("}text")
    ]
    assert "not measured" in texts
    assert "self-attention, fused" in texts
    assert "guide: n²" in texts
