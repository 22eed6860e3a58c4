"""Medians, ratios, alternating rounds, tables and plots, with example measurements."""

from __future__ import annotations

import json

import pytest
from bench.comparison import Comparison, Measurement, Series, System, measure_in_rounds
from bench.quality_plot import newest_runs, plot_quality
from bench.run import choices, merge
from bench.speed_plot import plot_speed
from bench.spread import Spread, ratios
from bench.tables import comparison_text, markdown_table, report

MACHINE = {
    "cpu": "an example CPU",
    "cores": 2,
    "memory_gigabytes": 8.0,
    "system": "Linux",
    "python": "3.11",
    "versions": {"torch": "2"},
    "saccade": "0",
    "commit": "abc",
}


def example_comparison() -> Comparison:
    tokens = Series("tokens", "training a tiny one", "target tokens/s", flops_per_unit=1e6)
    tokens.values = {"Saccade": [100.0, 120.0, 90.0], "slow": [50.0, 40.0, 45.0], "once": [None, 240.0]}
    single = Series("single", "one at a time", "ms a sentence", more_is_better=False)
    single.values = {"Saccade (torch)": [10.0, 10.0], "fast": [5.0, 4.0]}
    single.bytes_per_unit = 1e6
    turn = {"flops": 1e9, "bytes": 1e10, "threads": 2}
    limits: dict = {name: [turn] * 3 for name in ("Saccade", "slow", "fast")} | {"once": [None, turn]}
    return Comparison("training tiny", [tokens, single], limits, {"gone": "does not install | at all"}, ["a remark"])


def test_median_and_range():
    spread = Spread.of([3.0, 1.0, 2.0])
    assert spread == Spread(2.0, 1.0, 3.0, 3)
    assert spread.text(1) == "2.0 (1.0–3.0)"
    assert Spread.of([1234.0]).text() == "1,234"
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_ratios_are_computed_within_rounds():
    assert ratios([100.0, 200.0], [50.0, 50.0]) == Spread(3.0, 2.0, 4.0, 2)
    assert ratios([100.0, None, 200.0], [None, 5.0, 100.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert ratios([None], [1.0]) is None


def test_advantage_is_above_one_where_saccade_is_faster():
    tokens, single = example_comparison().series
    assert tokens.reference == "Saccade"
    assert tokens.advantage("slow") == Spread(2.0, 2.0, 3.0, 3)
    assert tokens.advantage("once") == Spread(0.5, 0.5, 0.5, 1)
    assert single.reference == "Saccade (torch)"
    assert single.advantage("fast") == Spread(0.45, 0.4, 0.5, 2)


def test_int8_is_compared_with_int8():
    series = Series("beam 5", "decoding", "sentences/s")
    series.values = {"Saccade (auto)": [100.0], "Saccade (int8)": [300.0], "CTranslate2, int8": [200.0], "slow": [50.0]}
    assert series.advantage("CTranslate2, int8") == Spread(1.5, 1.5, 1.5, 1)
    assert series.advantage("Saccade (int8)") == Spread(100 / 300, 100 / 300, 100 / 300, 1)
    assert series.advantage("slow") == Spread(2.0, 2.0, 2.0, 1)
    assert "| CTranslate2, int8 | 200 | 1.50 (int8) |" in comparison_text(Comparison("decoding", [series]))


def test_rounds_alternate_and_failed_systems_are_skipped():
    order = []

    def system(name: str, result: Measurement):
        return System(name, lambda: order.append(name) or result)

    comparison = Comparison("x", [Series("speed", "speed", "things/s")])
    results = {"a": Measurement({"speed": 1.0}), "b": Measurement(reason="broken"), "c": Measurement({})}
    systems = [system(name, result) for name, result in results.items()]
    measured_limits = iter(range(8))  # before the first measurement, and after each
    measure_in_rounds(comparison, systems, 3, limits=lambda: {"flops": float(next(measured_limits))})
    assert order == ["a", "b", "c", "a", "c", "a", "c"]
    assert comparison.series[0].values == {"a": [1.0, 1.0, 1.0]}
    assert comparison.reasons == {"b": "broken"}
    assert comparison.limits["a"] == [{"flops": 0.5}, {"flops": 3.5}, {"flops": 5.5}], "the mean of before and after"
    assert comparison.limits["c"] == [{"flops": 2.5}, {"flops": 4.5}, {"flops": 6.5}]


def point(system, minutes, bleu, date="2026-01-01"):
    return {"system": system, "minutes": minutes, "bleu": bleu, "date": date, "machine": {"commit": "a"}}


def test_quality_of_the_newest_run():
    points = [point("a", 10.0, 1.0), point("b", 30.0, 5.0), point("a", 30.0, 2.0), point("a", 9.0, 3.0)]
    assert newest_runs(points) == {"a": {9.0: 3.0}, "b": {30.0: 5.0}}
    points += [point("a", 30.0, 4.0), point("b", 60.0, 6.0, "2026-01-02")]
    assert newest_runs(points) == {"a": {9.0: 3.0, 30.0: 4.0}, "b": {60.0: 6.0}}


def test_missing_values_are_none():
    turns = iter([Measurement({}), Measurement({"speed": 5.0})])
    comparison = measure_in_rounds(Comparison("x", [Series("speed", "s", "u")]), [System("a", lambda: next(turns))], 2)
    assert comparison.series[0].values == {"a": [None, 5.0]}


def test_json_round_trip():
    comparison = example_comparison()
    assert Comparison.from_json(json.loads(json.dumps(comparison.to_json()))) == comparison


def test_table_has_ratios_limits_and_failures():
    text = comparison_text(example_comparison())
    assert "matrix product 1.0 (1.0–1.0) GFLOP/s, memory 10.0 (10.0–10.0) GB/s" in text
    assert "| slow | 45.0 (40.0–50.0) | 2.00 (2.00–3.00) | 4.5 (4.0–5.0) % |" in text
    assert "| fast | 4.50 (4.00–5.00) | 0.45 (0.40–0.50) | 2.2 (2.0–2.5) % |" in text  # 1 MB in 4.5 ms of 10 GB/s
    assert "| gone | does not install / at all |" in text


def test_markdown_table_columns():
    lines = markdown_table(["a", "b", "c"], [["1", "2", "3"]]).splitlines()
    assert {line.count("|") for line in lines} == {4}
    assert {line.count("|") for line in markdown_table(["", "why"], [["x", "y|z"]]).splitlines()} == {3}


def test_report_and_plot(tmp_path):
    found = {"date": "2026-01-01", "machine": MACHINE, "environments": {}, "comparisons": []}
    found["comparisons"] = [example_comparison().to_json()]
    assert "an example CPU, 2 cores" in report(found)
    assert plot_speed(found, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert not plot_speed({**found, "comparisons": []}, tmp_path / "y.png")


def test_parts_of_one_day_share_a_file_unless_something_changed(tmp_path):
    found = {"date": "2026-01-01", "machine": MACHINE, "environments": {"eole": {}}}
    training = example_comparison().to_json()
    path = tmp_path / "2026-01-01.json"
    path.write_text(json.dumps({**found, "comparisons": [training]}))
    new = {**found, "environments": {"joeynmt": {}}, "comparisons": []}
    same, merged = merge(new, path, {"decoding tiny"})
    assert same == path
    assert merged["comparisons"] == [training]
    assert merged["environments"].keys() == {"eole", "joeynmt"}
    second = tmp_path / "2026-01-01-2.json"
    assert merge(new, path, {"decoding tiny", "training tiny"}) == (second, new)  # nothing is overwritten
    for commit in ("def", "abc+"):
        other = {**new, "machine": {**MACHINE, "commit": commit}}
        assert merge(other, path, {"decoding tiny"}) == (second, other)


def test_unknown_choice_is_an_error():
    assert choices(("a", "b"))("b,a") == ("b", "a")
    with pytest.raises(Exception, match=r"'c' .*a, b"):
        choices(("a", "b"))("a,c")


def test_quality_plot(tmp_path):
    points = [point("saccade", 9.9, 34.3), point("saccade", 29.8, 39.4), point("eole", 30.0, 20.0)]
    plot_quality(points, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
