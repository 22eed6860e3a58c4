"""The number of updates of each model, decided before it trains: a clock may end a run but never shape it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saccade.comparison.budget import Budget
from saccade.training.config import RunConfig
from saccade.training.schedule import paper_peak

SHARE = 0.92  # of the minutes is planned: the speed of a machine varies, and checkpoints take time too
VALIDATIONS = 6
VALIDATION_SHARE = 0.15  # of the minutes may go to validation; else there is less of it
VALID_SENTENCES = 200
AVERAGED = 5  # checkpoints, of
CHECKPOINTS = 25
LOGGED = 50  # lines of the log


@dataclass(frozen=True)
class Speed:
    """What a trial on this machine measured."""

    seconds_an_update: float
    validation_seconds: float


@dataclass(frozen=True)
class Plan:
    """The length of one run."""

    updates: int
    validations: int
    tokens_an_update: float
    speed: Speed | None = None  # of a budget of minutes


def plan(budget: Budget, tokens_an_update: float, speed: Speed | None = None) -> Plan:
    """As many updates as the budget allows, at least one."""
    if budget.tokens is not None:
        updates = max(1, round(budget.tokens / tokens_an_update))
        return Plan(updates, min(VALIDATIONS, updates), tokens_an_update)
    assert budget.minutes is not None
    assert speed is not None
    seconds = 60 * budget.minutes
    validations = VALIDATIONS
    while validations > 1 and validations * speed.validation_seconds > VALIDATION_SHARE * seconds:
        validations -= 1
    left = SHARE * seconds - validations * speed.validation_seconds
    updates = max(1, int(left / speed.seconds_an_update))
    return Plan(updates, min(validations, updates), tokens_an_update, speed)


def planned_settings(found: Plan, budget: Budget, family: RunConfig) -> dict[str, Any]:
    """The settings that follow from a plan; `family` is the run without it.

    The rate comes down to 0 at the planned end, and the last checkpoints are averaged. A peak that would follow from
    the warm-up keeps that of the family's own warm-up: a shorter one would raise it out of reach.
    """
    training = family.training
    return {
        "training": {
            "max_steps": found.updates,
            "max_minutes": budget.minutes,
            "schedule": "linear",
            "warmup_steps": min(500, found.updates // 10),
            "learning_rate": training.learning_rate or paper_peak(family.choice().config.width, training.warmup_steps),
            "average_last": AVERAGED,
            "keep_checkpoints": max(AVERAGED, training.keep_checkpoints),
            "checkpoint_every": max(1, found.updates // CHECKPOINTS),
            "validate_every": -(-found.updates // found.validations),
            "valid_sentences": VALID_SENTENCES,
            "log_every": min(50, max(1, found.updates // LOGGED)),
        },
        "decoding": {"beam": 5},
    }
