"""What updates cost, and which settings of their number make sense."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from saccade.training.config import TrainingConfig
from saccade.training.loop import Progress
from saccade.training.stopping import share_done, updates_for, work_of


def test_updates_that_see_examples_once_cost_half():
    training = TrainingConfig(consistency=3.0, consistency_after=100)
    assert [work_of(training, updates) for updates in (0, 50, 100, 300)] == [0, 25, 50, 250]
    assert [updates_for(training, work) for work in (0, 25, 50, 250)] == [0, 50, 100, 300]
    assert share_done(training, Progress(step=100), 300) == pytest.approx(50 / 250)
    plain = TrainingConfig()
    assert [work_of(plain, 300), updates_for(plain, 300)] == [300, 300]
    assert work_of(training, None) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"consistency_after": 10}, "only acts with consistency"),
        ({"consistency": 1.0, "consistency_after": 10, "max_steps": 10}, "not before the end"),
        ({"consistency": 1.0, "objective": "minimum-risk", "start": "runs/x"}, "only acts on likelihood"),
        ({"consistency": -1.0}, "greater than or equal to 0"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings, words):
    with pytest.raises(ValidationError, match=words):
        TrainingConfig(**settings)
