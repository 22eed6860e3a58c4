"""The budget of each model, in minutes or target tokens, and the number of updates planned for it.

The number of updates is set before training: a time limit may end a run, but batches and learning rates do not
depend on the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from saccade.errors import UsageError
from saccade.training.config import RunConfig, TrainingConfig
from saccade.training.learning_rate_schedule import noam_peak
from saccade.training.stopping import updates_within

SECONDS = {"s": 1, "sec": 1, "seconds": 1, "m": 60, "min": 60, "minutes": 60, "h": 3600, "hours": 3600}
FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
MAX_MINUTES = 60 * 24 * 366
MAX_TOKENS = 10**15
ADVICE = "write minutes of training as 90s, 10m or 2h, or target tokens as 500ktok, 5Mtok or '5M tokens'"

TIME = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
TOKENS = re.compile(r"(\d+(?:\.\d+)?) ?([kKMG]?) ?(?:tok|tokens)")

PLANNED_SHARE = 0.92  # of the minutes: the speed of a machine varies, and checkpoints take time too
VALIDATIONS = 6
VALIDATION_SHARE = 0.15  # of the minutes: if validation takes more, it is reduced
VALID_SENTENCES = 200
MIN_VALID_SENTENCES = 20
AVERAGED_CHECKPOINTS = 5
CHECKPOINTS = 25
LOG_LINES = 50


@dataclass(frozen=True)
class Budget:
    """The budget of one model; either minutes or tokens is set."""

    minutes: float | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,} target tokens"
        assert self.minutes is not None
        return f"{60 * self.minutes:g} seconds" if self.minutes < 1 else f"{self.minutes:g} minutes"


@dataclass(frozen=True)
class Speed:
    """Speed of a model in a trial on this machine."""

    seconds_an_update: float
    validation_seconds: float
    loss_seconds: float = 0.0  # part of validation_seconds: the loss of all validation data
    sentences: int = VALID_SENTENCES  # translated in the rest of validation_seconds


@dataclass(frozen=True)
class TrainingPlan:
    """The planned length of one run."""

    updates: int
    validations: int  # before the end; 0 if one would take too much of the budget
    tokens_an_update: float
    speed: Speed | None = None  # for a budget in minutes
    valid_sentences: int | None = None  # if fewer than usual


def read_budget(text: str) -> Budget:
    """Parse a budget: `10m`, `90s` and `2h` are time; `5Mtok`, `5M tokens` and `300 tokens` are target tokens.

    A lower-case m is a minute and an upper-case M a million, so a bare `5M` is an error.
    """
    text = text.strip()
    if (time := TIME.fullmatch(text)) and time[2] in SECONDS:
        return Budget(minutes=check_range(float(time[1]) * SECONDS[time[2]] / 60, MAX_MINUTES, text))
    if found := TOKENS.fullmatch(text):
        return Budget(tokens=round(check_range(float(found[1]) * FACTORS[found[2]], MAX_TOKENS, text)))
    raise UsageError(f"the budget cannot be '{text}'", hint=ADVICE)


def check_range(value: float, maximum: float, text: str) -> float:
    """Return the value of a budget, or raise an error if no run can have it."""
    if not 0 < value <= maximum or (maximum == MAX_TOKENS and value < 1):
        size = "large" if value > maximum else "small"
        raise UsageError(f"the budget cannot be '{text}': it is too {size}", hint=ADVICE)
    return value


def make_plan(
    budget: Budget,
    tokens_an_update: float,
    speed: Speed | None = None,
    *,
    fewer_sentences: bool = True,
    training: TrainingConfig | None = None,
) -> TrainingPlan:
    """Plan as many updates as the budget allows, at least one.

    If validation would take too much of a budget in minutes, there are fewer validations, then, if `fewer_sentences`
    is true, fewer sentences; then there is only the validation at the end, which is not part of the budget.
    """
    if budget.tokens is not None:
        updates = max(1, round(budget.tokens / tokens_an_update))
        return TrainingPlan(updates, min(VALIDATIONS, updates), tokens_an_update)
    assert budget.minutes is not None
    assert speed is not None
    seconds = 60 * budget.minutes
    validations = VALIDATIONS
    while validations > 1 and validations * speed.validation_seconds > VALIDATION_SHARE * seconds:
        validations -= 1
    validation, sentences = speed.validation_seconds, None
    allowed = VALIDATION_SHARE * seconds
    if validation > allowed:  # a single one takes too long
        sentence_seconds = (validation - speed.loss_seconds) / max(1, speed.sentences)
        affordable = int((allowed - speed.loss_seconds) / sentence_seconds) if sentence_seconds > 0 else 0
        sentences = affordable if fewer_sentences else 0
        if sentences < MIN_VALID_SENTENCES:
            validations, sentences = 0, MIN_VALID_SENTENCES if fewer_sentences else None
        else:
            validation = speed.loss_seconds + sentences * sentence_seconds
    work = (PLANNED_SHARE * seconds - validations * validation) / speed.seconds_an_update
    updates = max(1, int(work if training is None else updates_within(training, work)))
    return TrainingPlan(updates, min(validations, updates), tokens_an_update, speed, sentences)


def planned_settings(plan: TrainingPlan, budget: Budget, family: RunConfig) -> dict[str, Any]:
    """Return the settings that follow from a plan; `family` is the config of the run without it.

    The learning rate decays to 0 at the planned end, and the last checkpoints are averaged. A peak that follows from
    the warm-up of the family is kept: a shorter warm-up would raise it too high.
    """
    training = family.training
    return {
        "training": {
            "max_steps": plan.updates,
            "max_minutes": budget.minutes,
            "schedule": "linear",
            "warmup_steps": min(500, plan.updates // 10),
            "learning_rate": training.learning_rate or noam_peak(family.choice().config.width, training.warmup_steps),
            "average_last": AVERAGED_CHECKPOINTS,
            "keep_checkpoints": max(AVERAGED_CHECKPOINTS, training.keep_checkpoints),
            "checkpoint_every": max(1, plan.updates // CHECKPOINTS),
            # A run is validated at its end anyway.
            "validate_every": -(-plan.updates // plan.validations) if plan.validations else plan.updates + 1,
            "valid_sentences": plan.valid_sentences or VALID_SENTENCES,
            "log_every": min(50, max(1, plan.updates // LOG_LINES)),
        },
        "decoding": {"beam": 5},
    }
