from __future__ import annotations

from pathlib import Path

import pytest

from saccade.evaluation.bootstrap import Interval
from saccade.evaluation.length_buckets import Bucket
from saccade.models.family import Costs
from saccade.plots.model_comparison import ScoreCurve
from saccade.studies.comparison import report
from saccade.studies.comparison.budget import TrainingPlan
from saccade.studies.comparison.request import Entry
from saccade.studies.comparison.results import Alignment, Result, TrainingCost
from saccade.studies.comparison.scores import Row, Scores, read_curve

PLAN = TrainingPlan(updates=100, validations=6, tokens_an_update=500.0)


def result(updates: int, seconds: float, minutes: float | None) -> Result:
    cost = TrainingCost(updates, seconds, 1000, 10.0, 1e9, "digest")
    return Result("a", "done", config={"training": {"max_minutes": minutes}}, plan=PLAN, trained=cost)


@pytest.mark.parametrize("minutes", [None, 2.0])
def test_a_complete_training_did_not_end_early(minutes: float | None) -> None:
    assert result(100, 119.0, minutes).early_end is None
    assert Result("a", "planned", plan=PLAN).early_end is None


def test_the_reason_of_an_early_end_is_the_time_or_early_stopping() -> None:
    time_is_up, stopped = result(90, 120.5, 2.0).early_end, result(90, 100.0, 2.0).early_end
    assert time_is_up is not None
    assert stopped is not None
    assert "90 of 100 updates" in time_is_up
    assert "2 minutes" in time_is_up
    assert "early stopping" in stopped
    assert result(90, 500.0, None).early_end == stopped


def test_a_failure_is_the_reason() -> None:
    failed = Result("a", "planned", plan=PLAN).failed("the loss is NaN\nin batch 7")
    assert failed.early_end is not None
    assert "the loss is NaN in batch 7" in failed.early_end


def test_the_curve_of_a_run_that_failed_is_read_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,valid_bleu\n10,2.5\n20,5.0\n", encoding="utf-8")
    (tmp_path / "timing.csv").write_text("step,seconds\n20,120\n", encoding="utf-8")
    assert read_curve(tmp_path, "failed: x") == ScoreCurve([1.0, 2.0], [2.5, 5.0], "failed: x")


def test_plots_of_a_comparison_with_a_failed_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}
    monkeypatch.setattr(report, "plot_models", lambda panels, path, title: drawn.update(panels=panels, title=title))
    for name in ("plot_by_length", "plot_by_minutes"):
        monkeypatch.setattr(f"saccade.studies.comparison.report.{name}", lambda *args, **more: drawn.update(more))
    costs, alignment = Costs("", "", ""), Alignment("a b", ("a", "b"), ("c",), ((0.5, 0.5),), output="c!")
    failed = Row(
        Entry("luong", "luong", "luong-tiny"), costs, Result("luong", "failed"), curve=ScoreCurve([1], [2], "x")
    )
    entry, curve = Entry("bahdanau", "bahdanau", "bahdanau-tiny"), ScoreCurve([1], [2])
    score = Interval(33.25, 30, 36)
    done = Row(entry, costs, Result("bahdanau", "done"), score, 50.0, (score,), curve, alignment)
    scores = Scores((failed, done), (Bucket(1, None, (0, 1)),), 2, 0, None, (), (), ())
    captions = [plot.caption for plot in report.draw_plots(scores, tmp_path)]
    assert drawn["models"] == ["luong", "bahdanau"]  # in both plots, so that the colors agree
    [panel] = drawn["panels"]
    assert (panel.title, panel.caption) == ("bahdanau, BLEU 33.2", "c!")
    assert drawn["title"] == {"source": "a b"}
    assert "cross" in captions[1]
