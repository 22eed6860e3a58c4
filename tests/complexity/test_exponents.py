from __future__ import annotations

import math

import pytest

from saccade.errors import SaccadeError
from saccade.studies.complexity.findings import Findings, exponent, last_octaves
from saccade.studies.complexity.layers import LAYERS, LayerSizes, select_layers
from saccade.studies.complexity.measurement import Measurement, Timing
from saccade.studies.complexity.report import sections
from saccade.studies.complexity.series import MeasurementPlan

LENGTHS = (64, 128, 256, 512, 1024, 2048)


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_law_is_found(power: float) -> None:
    found = exponent({length: 3e-9 * length**power for length in LENGTHS})
    assert found is not None
    assert math.isclose(found, power, abs_tol=1e-12)


def test_one_outlier_does_not_hide_the_power_law() -> None:
    costs = {length: 1e-6 * length**2 * (1.1 if length == 512 else 1.0) for length in LENGTHS}
    found = exponent(costs)
    assert found is not None
    assert 1.9 < found < 2.1
    assert found != pytest.approx(2.0, abs=1e-4)


def test_no_exponent_for_one_point_or_a_cost_of_zero() -> None:
    assert exponent({64: 1.0}) is None
    assert exponent({}) is None
    assert exponent({64: 0.0, 128: 1.0}) is None


def test_only_the_last_three_octaves_count() -> None:
    costs = {length: 1.0 if length < 256 else length**2.0 for length in LENGTHS}
    assert list(last_octaves(costs)) == [256, 512, 1024, 2048]
    assert exponent(last_octaves(costs)) == pytest.approx(2.0)
    assert exponent(costs) != pytest.approx(2.0, abs=0.5)


def synthetic(layer: str, width: int, length: int) -> Measurement:
    """Forward n² d, backward twice that, memory n."""
    seconds = 1e-12 * length**2 * width
    return Measurement(
        layer,
        width,
        length,
        4 * length * width,
        Timing(seconds, 0.01),
        Timing(2 * seconds, 0.02),
        5,
        10 * length,
        16 * length,
        0,
    )


def findings(left_out: int) -> Findings:
    """Findings for fused attention; at the larger width, lengths from `left_out` on are not measured."""
    plan = MeasurementPlan(("fused",), LENGTHS, (32, 64), LayerSizes(), 0.1, 10**9)
    found = [
        Measurement("fused", width, length, 4 * length * width, left_out="needs more than 1 GB")
        if width == 64 and length >= left_out
        else synthetic("fused", width, length)
        for width in plan.widths
        for length in LENGTHS
    ]
    return Findings(plan, tuple(found), {"fused": {16: 1}}, {"fused": {16: 1}})


def test_exponents_use_completed_measurements_only() -> None:
    found = findings(left_out=1024)
    short, long = found.growth_in_length("fused", 64), found.growth_in_length("fused", 32)
    assert short.sizes == (64, 128, 256, 512)
    assert long.sizes == (256, 512, 1024, 2048)
    for growth in (short, long):
        assert growth.forward == pytest.approx(2.0)
        assert growth.backward == pytest.approx(2.0)
        assert growth.both == pytest.approx(2.0)
        assert growth.memory == pytest.approx(1.0)
    # The projections count too, and weigh more where sequences are short and layers wide.
    assert short.counted is not None
    assert long.counted is not None
    assert 1 < short.counted < long.counted < 2
    length, growth = found.growth_in_width("fused")
    assert length == 512  # the longest that both widths have
    assert growth.both == pytest.approx(1.0)


def test_an_unmeasured_layer_has_no_exponents() -> None:
    found = findings(left_out=1)
    assert found.growth_in_length("fused", 64).both is None
    assert found.growth_in_width("fused")[0] is None


def test_tables_name_what_was_left_out() -> None:
    tables = list(sections(findings(left_out=1024)))
    notes = [note for section in tables for note in section.notes]
    assert any("1,024" in note and "needs more than 1 GB" in note for note in notes)
    for section in tables:
        assert len({len(row) for row in section.rows}) == 1
        assert set(section.right) <= set(section.rows[0])


def test_a_misspelt_layer_is_corrected() -> None:
    with pytest.raises(SaccadeError, match="'recurrent'"):
        select_layers(["fused", "recurent"])
    assert list(select_layers(["separable", "explicit"])) == ["explicit", "separable"]


def test_multiplications_by_hand() -> None:
    sizes = LayerSizes(kernel=3, radius=1)
    counted = {name: layer.multiplications(4, 2, sizes) for name, layer in LAYERS.items()}
    assert counted == {
        "explicit": 2 * 16 * 2 + 4 * 4 * 4,
        "fused": 2 * 16 * 2 + 4 * 4 * 4,
        "restricted": 2 * 4 * 3 * 2 + 4 * 4 * 4,
        "recurrent": 8 * 4 * 4,
        "convolution": 3 * 4 * 4,
        "dilated": 3 * 4 * 4,
        "separable": 3 * 4 * 2 + 4 * 4,
    }
