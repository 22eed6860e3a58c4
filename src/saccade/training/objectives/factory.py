"""From the settings of a run to what it minimises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.models.registry import Choice
from saccade.training.config import RewardUnit, TrainingConfig
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.minimum_risk import RISK_METRICS, MinimumRisk, rehearse
from saccade.training.objectives.objective import Objective, ObjectiveAt


def make_objective(
    training: TrainingConfig, choice: Choice, target: Tokenizer, *, rehearsed: bool = False
) -> Objective:
    """What the settings ask for; `rehearsed` costs the same but writes outputs that do not depend on the weights."""
    likelihood = make_likelihood(training, choice)
    if training.objective == "likelihood":
        return likelihood
    return MinimumRisk(
        training.risk,
        likelihood,
        reward_words(target, training.risk.unit),
        vocabulary=target.size,
        symbols=target.symbols,
        draw=rehearse if rehearsed else None,
    )


def objective_at(training: TrainingConfig, choice: Choice, target: Tokenizer) -> ObjectiveAt:
    """What the settings ask for, update by update: consistency may come later."""
    last = make_objective(training, choice, target)
    if not training.consistency_after:
        return lambda _: last
    first = make_objective(training.model_copy(update={"consistency": 0.0}), choice, target)
    return lambda step: first if step <= training.consistency_after else last


def sums_of_objective(training: TrainingConfig, choice: Choice) -> tuple[str, ...]:
    """The names of what the objective of these settings reports."""
    likelihood = make_likelihood(training, choice).metrics
    return likelihood if training.objective == "likelihood" else (*RISK_METRICS, *likelihood)


def make_likelihood(training: TrainingConfig, choice: Choice) -> Likelihood:
    """The likelihood, with the sums that this model reports."""
    return Likelihood(training.label_smoothing, auxiliary=choice.config.auxiliary, consistency=training.consistency)


def reward_words(tokenizer: Tokenizer, unit: RewardUnit) -> Callable[[Sequence[int]], list[str]]:
    """From ids to what a reward counts: the words of the text, or the tokens."""
    if unit == "token":
        return lambda ids: [str(token) for token in ids]
    return lambda ids: tokenizer.decode(ids).split()
