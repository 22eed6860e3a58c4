"""Medians, ratios, turns, tables and the picture: from made-up measurements to what a reader sees."""

from __future__ import annotations

import json

import pytest
from bench.picture import draw
from bench.quality_picture import draw_quality, newest_runs
from bench.run import choices, merge
from bench.series import Contest, Contestant, Series, Turn, take_turns
from bench.spread import Spread, ratios
from bench.tables import contest_text, markdown_table, report

MACHINE = {
    "cpu": "a made-up CPU",
    "cores": 2,
    "memory_gigabytes": 8.0,
    "system": "Linux",
    "python": "3.11",
    "versions": {"torch": "2"},
    "saccade": "0",
    "commit": "abc",
}


def made_up() -> Contest:
    tokens = Series("tokens", "training a tiny one", "target tokens/s", flops_a_unit=1e6)
    tokens.values = {"Saccade": [100.0, 120.0, 90.0], "slow": [50.0, 40.0, 45.0], "once": [None, 240.0]}
    single = Series("single", "one at a time", "ms a sentence", more_is_better=False)
    single.values = {"Saccade (torch)": [10.0, 10.0], "fast": [5.0, 4.0]}
    single.bytes_a_unit = 1e6
    turn = {"flops": 1e9, "bytes": 1e10, "threads": 2}
    limits: dict = {name: [turn] * 3 for name in ("Saccade", "slow", "fast")} | {"once": [None, turn]}
    return Contest("training tiny", [tokens, single], limits, {"gone": "does not install | at all"}, ["a remark"])


def test_a_median_with_its_extremes():
    spread = Spread.of([3.0, 1.0, 2.0])
    assert spread == Spread(2.0, 1.0, 3.0, 3)
    assert spread.text(1) == "2.0 (1.0–3.0)"
    assert Spread.of([1234.0]).text() == "1,234"
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_ratios_are_taken_round_by_round():
    assert ratios([100.0, 200.0], [50.0, 50.0]) == Spread(3.0, 2.0, 4.0, 2)
    assert ratios([100.0, None, 200.0], [None, 5.0, 100.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert ratios([None], [1.0]) is None


def test_advantage_is_above_one_where_saccade_is_faster():
    tokens, single = made_up().series
    assert tokens.reference == "Saccade"
    assert tokens.advantage("slow") == Spread(2.0, 2.0, 3.0, 3)
    assert tokens.advantage("once") == Spread(0.5, 0.5, 0.5, 1)
    assert single.reference == "Saccade (torch)"
    assert single.advantage("fast") == Spread(0.45, 0.4, 0.5, 2)


def test_eight_bits_are_compared_with_eight_bits():
    series = Series("beam 5", "decoding", "sentences/s")
    series.values = {"Saccade (auto)": [100.0], "Saccade (int8)": [300.0], "CTranslate2, int8": [200.0], "slow": [50.0]}
    assert series.advantage("CTranslate2, int8") == Spread(1.5, 1.5, 1.5, 1)
    assert series.advantage("Saccade (int8)") == Spread(100 / 300, 100 / 300, 100 / 300, 1)
    assert series.advantage("slow") == Spread(2.0, 2.0, 2.0, 1)
    assert "| CTranslate2, int8 | 200 | 1.50 (int8) |" in contest_text(Contest("decoding", [series]))


def test_turns_are_taken_in_turn_and_a_failure_is_kept():
    order = []

    def measured(name: str, turn: Turn):
        return Contestant(name, lambda: order.append(name) or turn)

    contest = Contest("x", [Series("speed", "speed", "things/s")])
    contestants = [measured("a", Turn({"speed": 1.0})), measured("b", Turn(reason="broken")), measured("c", Turn({}))]
    measured_limits = iter(range(8))  # before the first turn, and after each
    take_turns(contest, contestants, 3, limits=lambda: {"flops": float(next(measured_limits))})
    assert order == ["a", "b", "c", "a", "c", "a", "c"]
    assert contest.series[0].values == {"a": [1.0, 1.0, 1.0]}
    assert contest.reasons == {"b": "broken"}
    assert contest.limits["a"] == [{"flops": 0.5}, {"flops": 3.5}, {"flops": 5.5}], "the mean of before and after"
    assert contest.limits["c"] == [{"flops": 2.5}, {"flops": 4.5}, {"flops": 6.5}]


def point(system, minutes, bleu, date="2026-01-01"):
    return {"system": system, "minutes": minutes, "bleu": bleu, "date": date, "machine": {"commit": "a"}}


def test_the_curve_of_quality_is_that_of_the_newest_run():
    points = [point("a", 10.0, 1.0), point("b", 30.0, 5.0), point("a", 30.0, 2.0), point("a", 9.0, 3.0)]
    assert newest_runs(points) == {"a": {9.0: 3.0}, "b": {30.0: 5.0}}
    points += [point("a", 30.0, 4.0), point("b", 60.0, 6.0, "2026-01-02")]
    assert newest_runs(points) == {"a": {9.0: 3.0, 30.0: 4.0}, "b": {60.0: 6.0}}


def test_a_late_value_stands_in_its_own_round():
    turns = iter([Turn({}), Turn({"speed": 5.0})])
    contest = take_turns(Contest("x", [Series("speed", "s", "u")]), [Contestant("a", lambda: next(turns))], 2)
    assert contest.series[0].values == {"a": [None, 5.0]}


def test_a_contest_survives_json():
    contest = made_up()
    assert Contest.from_json(json.loads(json.dumps(contest.to_json()))) == contest


def test_the_table_has_ratios_limits_and_who_is_missing():
    text = contest_text(made_up())
    assert "matrix product 1.0 (1.0–1.0) GFLOP/s, memory 10.0 (10.0–10.0) GB/s" in text
    assert "| slow | 45.0 (40.0–50.0) | 2.00 (2.00–3.00) | 4.5 (4.0–5.0) % |" in text
    assert "| fast | 4.50 (4.00–5.00) | 0.45 (0.40–0.50) | 2.2 (2.0–2.5) % |" in text  # 1 MB in 4.5 ms of 10 GB/s
    assert "| gone | does not install / at all |" in text


def test_rows_have_as_many_cells_as_the_header():
    lines = markdown_table(["a", "b", "c"], [["1", "2", "3"]]).splitlines()
    assert {line.count("|") for line in lines} == {4}
    assert {line.count("|") for line in markdown_table(["", "why"], [["x", "y|z"]]).splitlines()} == {3}


def test_report_and_picture(tmp_path):
    found = {"date": "2026-01-01", "machine": MACHINE, "environments": {}, "contests": []}
    found["contests"] = [made_up().to_json()]
    assert "a made-up CPU, 2 cores" in report(found)
    assert draw(found, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert not draw({**found, "contests": []}, tmp_path / "y.png")


def test_parts_of_one_day_come_together_unless_something_changed(tmp_path):
    found = {"date": "2026-01-01", "machine": MACHINE, "environments": {"eole": {}}}
    training = made_up().to_json()
    place = tmp_path / "2026-01-01.json"
    place.write_text(json.dumps({**found, "contests": [training]}))
    new = {**found, "environments": {"joeynmt": {}}, "contests": []}
    same, merged = merge(new, place, {"decoding tiny"})
    assert same == place
    assert merged["contests"] == [training]
    assert merged["environments"].keys() == {"eole", "joeynmt"}
    second = tmp_path / "2026-01-01-2.json"
    assert merge(new, place, {"decoding tiny", "training tiny"}) == (second, new)  # nothing is written over
    for commit in ("def", "abc+"):
        other = {**new, "machine": {**MACHINE, "commit": commit}}
        assert merge(other, place, {"decoding tiny"}) == (second, other)


def test_an_unknown_choice_is_refused():
    assert choices(("a", "b"))("b,a") == ("b", "a")
    with pytest.raises(Exception, match="'c' is not one of a, b"):
        choices(("a", "b"))("a,c")


def test_the_curve_of_quality(tmp_path):
    points = [point("saccade", 9.9, 34.3), point("saccade", 29.8, 39.4), point("eole", 30.0, 20.0)]
    draw_quality(points, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
