"""Limits of a run: steps, epochs, minutes, patience."""

from __future__ import annotations

from saccade.training.config import TrainingConfig
from saccade.training.loop import Progress

DEFAULT_EPOCHS = 30


def epoch_limit(training: TrainingConfig) -> int | None:
    """Return the maximum number of epochs; `DEFAULT_EPOCHS` if the config sets no limit at all."""
    limited = training.max_steps or training.max_epochs or training.max_minutes
    return training.max_epochs if limited else DEFAULT_EPOCHS


def planned_updates(training: TrainingConfig, batches_an_epoch: int) -> int | None:
    """Return the planned number of updates, None if unknown; epochs differ slightly in their number of batches."""
    epochs = epoch_limit(training)
    updates_an_epoch = -(-batches_an_epoch // training.accumulate)
    limits = [training.max_steps, epochs * updates_an_epoch if epochs else None]
    return min((limit for limit in limits if limit), default=None)


def equivalent_updates(training: TrainingConfig, updates: int | None) -> float | None:
    """Convert the first `updates` updates to full-cost ones: before `r_drop_after` an update costs half."""
    if updates is None or not training.r_drop:
        return updates
    return updates - min(updates, training.r_drop_after) / 2


def updates_within(training: TrainingConfig, work: float) -> float:
    """Return how many updates cost as much as `work` full-cost ones: the inverse of `equivalent_updates`."""
    if not training.r_drop:
        return work
    return min(2 * work, work + training.r_drop_after / 2)


def limit_reached(training: TrainingConfig, progress: Progress) -> str | None:
    """Return a description of the limit that ends the run here, or None."""
    epochs = epoch_limit(training)
    if training.max_steps and progress.step >= training.max_steps:
        return "max-steps reached"
    if epochs and progress.position.epoch >= epochs:
        return "max-epochs reached"
    if training.max_minutes and progress.seconds >= 60 * training.max_minutes:
        return f"max-minutes reached ({training.max_minutes:g})"
    if training.patience and progress.stale >= training.patience:
        return f"no better {training.criterion} since step {progress.best_step:,}"
    return None


def fraction_done(training: TrainingConfig, progress: Progress, planned: int | None) -> float | None:
    """Return the fraction of the run that is done, by the nearest limit; `planned` is its number of updates."""
    done, total = (equivalent_updates(training, updates) for updates in (progress.step, planned))
    fractions = [done / total] if done and total else []
    if training.max_minutes:
        fractions.append(progress.seconds / 60 / training.max_minutes)
    return min(1.0, max(fractions)) if fractions else None
