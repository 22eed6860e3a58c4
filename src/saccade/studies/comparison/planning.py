"""The number of updates of each model, decided before it trains: a clock may end a run but never shape it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saccade.studies.comparison.budget import Budget
from saccade.training.config import RunConfig, TrainingConfig
from saccade.training.learning_rate_schedule import noam_peak
from saccade.training.stopping import updates_within

SHARE = 0.92  # of the minutes is planned: the speed of a machine varies, and checkpoints take time too
VALIDATIONS = 6
VALIDATION_SHARE = 0.15  # of the minutes may go to validation; else there is less of it
VALID_SENTENCES = 200
FEWEST_SENTENCES = 20  # that a score is taken of
AVERAGED = 5  # checkpoints, of
CHECKPOINTS = 25
LOGGED = 50  # lines of the log


@dataclass(frozen=True)
class Speed:
    """What a trial on this machine measured."""

    seconds_an_update: float
    validation_seconds: float
    loss_seconds: float = 0.0  # of them, for the loss of all validation data
    sentences: int = VALID_SENTENCES  # that were translated in the rest


@dataclass(frozen=True)
class Plan:
    """The length of one run."""

    updates: int
    validations: int  # before the end; 0 if one would take too much of the budget
    tokens_an_update: float
    speed: Speed | None = None  # of a budget of minutes
    valid_sentences: int | None = None  # fewer than usual


def plan(
    budget: Budget,
    tokens_an_update: float,
    speed: Speed | None = None,
    *,
    fewer: bool = True,
    training: TrainingConfig | None = None,
) -> Plan:
    """As many updates as the budget allows, at least one; `fewer` validation sentences are taken where it is short.

    Where even those would take too long there is no validation but the one at the end, which is not part of the budget.
    """
    if budget.tokens is not None:
        updates = max(1, round(budget.tokens / tokens_an_update))
        return Plan(updates, min(VALIDATIONS, updates), tokens_an_update)
    assert budget.minutes is not None
    assert speed is not None
    seconds = 60 * budget.minutes
    validations = VALIDATIONS
    while validations > 1 and validations * speed.validation_seconds > VALIDATION_SHARE * seconds:
        validations -= 1
    validation, sentences = speed.validation_seconds, None
    allowed = VALIDATION_SHARE * seconds
    if validation > allowed:  # even once
        each = (validation - speed.loss_seconds) / max(1, speed.sentences)
        sentences = int((allowed - speed.loss_seconds) / each) if fewer and each > 0 else 0
        if sentences < FEWEST_SENTENCES:
            validations, sentences = 0, FEWEST_SENTENCES if fewer else None
        else:
            validation = speed.loss_seconds + sentences * each
    work = (SHARE * seconds - validations * validation) / speed.seconds_an_update
    updates = max(1, int(work if training is None else updates_within(training, work)))
    return Plan(updates, min(validations, updates), tokens_an_update, speed, sentences)


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
            "learning_rate": training.learning_rate or noam_peak(family.choice().config.width, training.warmup_steps),
            "average_last": AVERAGED,
            "keep_checkpoints": max(AVERAGED, training.keep_checkpoints),
            "checkpoint_every": max(1, found.updates // CHECKPOINTS),
            # A run is validated at its end anyway.
            "validate_every": -(-found.updates // found.validations) if found.validations else found.updates + 1,
            "valid_sentences": found.valid_sentences or VALID_SENTENCES,
            "log_every": min(50, max(1, found.updates // LOGGED)),
        },
        "decoding": {"beam": 5},
    }
