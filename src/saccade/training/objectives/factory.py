"""Construction of objectives from the training config."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.models.registry import Choice
from saccade.training.config import RewardUnit, TrainingConfig
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.minimum_risk import RISK_METRICS, MinimumRisk, dry_run_outputs
from saccade.training.objectives.objective import Objective, ObjectiveSchedule


def make_objective(training: TrainingConfig, choice: Choice, target: Tokenizer, *, dry_run: bool = False) -> Objective:
    """Build the configured objective; with `dry_run` the cost of sampling does not depend on the weights."""
    likelihood = make_likelihood(training, choice, training.r_drop)
    if training.objective == "likelihood":
        return likelihood
    return MinimumRisk(
        training.risk,
        likelihood,
        reward_words(target, training.risk.unit),
        vocabulary=target.size,
        symbols=target.symbols,
        sampler=dry_run_outputs if dry_run else None,
    )


def make_objective_schedule(training: TrainingConfig, choice: Choice, target: Tokenizer) -> ObjectiveSchedule:
    """Return the objective as a function of the step: R-Drop may begin after `r_drop_after` updates."""
    full = make_objective(training, choice, target)
    if not training.r_drop_after:  # always 0 with minimum risk
        return lambda _: full
    without_r_drop = make_likelihood(training, choice, r_drop=0.0)
    return lambda step: without_r_drop if step <= training.r_drop_after else full


def objective_metrics(training: TrainingConfig, choice: Choice) -> tuple[str, ...]:
    """Return the names of the metrics of the configured objective."""
    likelihood = make_likelihood(training, choice, training.r_drop).metrics
    return likelihood if training.objective == "likelihood" else (*RISK_METRICS, *likelihood)


def make_likelihood(training: TrainingConfig, choice: Choice, r_drop: float) -> Likelihood:
    """Build the likelihood with the auxiliary metrics of this model; `r_drop` is the weight of R-Drop."""
    return Likelihood(training.label_smoothing, auxiliary=choice.config.auxiliary, r_drop=r_drop)


def reward_words(tokenizer: Tokenizer, unit: RewardUnit) -> Callable[[Sequence[int]], list[str]]:
    """Return a function from token ids to the units that a reward counts: words of the text, or tokens."""
    if unit == "token":
        return lambda ids: [str(token) for token in ids]
    return lambda ids: tokenizer.decode(ids).split()
