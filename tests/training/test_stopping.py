"""Cost of updates, and settings that limit their number."""

from __future__ import annotations

import pytest

from saccade.errors import SaccadeError
from saccade.training.config import TrainingConfig
from saccade.training.loop import Progress
from saccade.training.stopping import equivalent_updates, fraction_done, updates_within


def test_updates_before_r_drop_cost_half():
    training = TrainingConfig(r_drop=3.0, r_drop_after=100)
    assert [equivalent_updates(training, updates) for updates in (0, 50, 100, 300)] == [0, 25, 50, 250]
    assert [updates_within(training, work) for work in (0, 25, 50, 250)] == [0, 50, 100, 300]
    assert fraction_done(training, Progress(step=100), 300) == pytest.approx(50 / 250)
    plain = TrainingConfig()
    assert [equivalent_updates(plain, 300), updates_within(plain, 300)] == [300, 300]
    assert equivalent_updates(training, None) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"r_drop_after": 10}, "needs r-drop"),
        ({"r_drop": 1.0, "r_drop_after": 10, "max_steps": 10}, "must be below max-steps"),
        ({"r_drop": 1.0, "objective": "minimum-risk", "start": "runs/x"}, "r-drop has no effect"),
        ({"r_drop": -1.0}, "greater than or equal to 0"),
    ],
)
def test_settings_without_effect_are_rejected(settings, words):
    with pytest.raises(SaccadeError, match=words):
        TrainingConfig(**settings)
