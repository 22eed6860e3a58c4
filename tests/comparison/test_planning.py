from __future__ import annotations

import pytest

from saccade.studies.comparison.budget import Budget, Speed, make_plan, planned_settings
from saccade.training.config import TrainingConfig
from saccade.training.config_resolution import resolve_config


def test_a_token_budget_is_divided_by_the_tokens_of_an_update() -> None:
    found = make_plan(Budget(tokens=10_000), tokens_an_update=300.0)
    assert (found.updates, found.validations) == (33, 6)
    assert make_plan(Budget(tokens=10), 300.0).updates == 1


def test_minutes_include_validations_and_a_margin() -> None:
    # 92 % of 600 s are 552 s; 6 validations of 5 s leave 522 s; at 0.25 s an update these are 2,088.
    assert make_plan(Budget(minutes=10), 3000.0, Speed(0.25, 5.0)).updates == 2088


def test_updates_before_r_drop_cost_half() -> None:
    # 2,088 updates would fit; where 1,000 cost half there are 500 more, and where all do, twice as many.
    for after, updates in ((0, 2088), (1000, 2588), (5000, 4176)):
        training = TrainingConfig(r_drop=3.0, r_drop_after=after)
        assert make_plan(Budget(minutes=10), 3000.0, Speed(0.25, 5.0), training=training).updates == updates


def test_slow_validations_become_fewer() -> None:
    # 15 % of 600 s are 90 s: two validations of 40 s, and 552 - 80 = 472 s of updates.
    found = make_plan(Budget(minutes=10), 3000.0, Speed(1.0, 40.0))
    assert (found.validations, found.updates) == (2, 472)


def test_a_slow_validation_has_fewer_sentences_or_is_left_to_the_end() -> None:
    # 15 % of 60 s are 9 s. Of 21 s a validation takes 1 s for the loss and 0.1 s a sentence: 80 sentences fit.
    found = make_plan(Budget(minutes=1), 3000.0, Speed(0.1, 21.0, 1.0, 200))
    assert (found.validations, found.valid_sentences, found.updates) == (1, 80, 462)  # 55.2 - 9 = 46.2 s
    # None fit if the loss takes 10 s: all of the 55.2 s are for updates.
    found = make_plan(Budget(minutes=1), 3000.0, Speed(0.1, 21.0, 10.0, 200))
    assert (found.validations, found.valid_sentences, found.updates) == (0, 20, 552)
    # A number of sentences that the user set is kept.
    found = make_plan(Budget(minutes=1), 3000.0, Speed(0.1, 21.0, 1.0, 200), fewer_sentences=False)
    assert (found.validations, found.valid_sentences, found.updates) == (0, None, 552)
    family = resolve_config({"model": {"preset": "transformer-tiny"}}, where="test")
    training = planned_settings(found, Budget(minutes=1), family)["training"]
    assert training["validate_every"] > training["max_steps"]


def test_settings_of_a_plan() -> None:
    family = resolve_config(
        {"model": {"preset": "transformer-tiny"}, "training": {"learning_rate": 3e-3}}, where="test"
    )
    budget = Budget(minutes=10)
    training = planned_settings(make_plan(budget, 3000.0, Speed(0.25, 5.0)), budget, family)["training"]
    assert training["max_steps"] == 2088
    assert training["max_minutes"] == 10
    assert training["schedule"] == "linear"
    assert training["warmup_steps"] == 208
    assert training["checkpoint_every"] == 83
    assert training["validate_every"] == 348
    assert training["average_last"] <= training["keep_checkpoints"]
    assert training["learning_rate"] == 3e-3
    long = planned_settings(make_plan(Budget(minutes=600), 3000.0, Speed(0.25, 5.0)), Budget(minutes=600), family)
    assert long["training"]["warmup_steps"] == 500


def test_a_shorter_warmup_does_not_raise_the_peak_learning_rate() -> None:
    settings = {"model": {"preset": "transformer-tiny"}, "training": {"learning_rate": None, "warmup_steps": 1000}}
    family = resolve_config(settings, where="test")
    found = planned_settings(make_plan(Budget(tokens=3000), 300.0), Budget(tokens=3000), family)["training"]
    assert found["warmup_steps"] == 1
    assert found["learning_rate"] == pytest.approx((128 * 1000) ** -0.5)
