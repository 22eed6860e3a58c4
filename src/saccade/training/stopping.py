"""Where a run ends, as far as its settings say so."""

from __future__ import annotations

from saccade.training.config import TrainingConfig
from saccade.training.loop import Progress

DEFAULT_EPOCHS = 30


def last_epoch(training: TrainingConfig) -> int | None:
    """The most epochs, also where no limit is given at all."""
    limited = training.max_steps or training.max_epochs or training.max_minutes
    return training.max_epochs if limited else DEFAULT_EPOCHS


def planned_updates(training: TrainingConfig, batches_an_epoch: int) -> int | None:
    """The number of updates that the schedule counts on; epochs differ a little in their number of batches."""
    epochs = last_epoch(training)
    updates_an_epoch = -(-batches_an_epoch // training.accumulate)
    limits = [training.max_steps, epochs * updates_an_epoch if epochs else None]
    return min((limit for limit in limits if limit), default=None)


def work_of(training: TrainingConfig, updates: int | None) -> float | None:
    """As how many of its last updates the first so many count: those that see each example once cost half."""
    if updates is None or not training.consistency:
        return updates
    return updates - min(updates, training.consistency_after) / 2


def updates_for(training: TrainingConfig, work: float) -> float:
    """How many updates cost as much as so many of the last ones: the inverse of `work_of`."""
    if not training.consistency:
        return work
    return min(2 * work, work + training.consistency_after / 2)


def limit_reached(training: TrainingConfig, progress: Progress) -> str | None:
    """Which limit ends the run here, in words."""
    epochs = last_epoch(training)
    if training.max_steps and progress.step >= training.max_steps:
        return "all steps are done"
    if epochs and progress.place.epoch >= epochs:
        return "all epochs are done"
    if training.max_minutes and progress.seconds >= 60 * training.max_minutes:
        return f"{training.max_minutes:g} minutes are over"
    if training.patience and progress.stale >= training.patience:
        return f"no better {training.criterion} since step {progress.best_step:,}"
    return None


def share_done(training: TrainingConfig, progress: Progress, planned: int | None) -> float | None:
    """How much of the run is over, by whichever limit is nearer; `planned` are all its updates, if that is known."""
    done, whole = (work_of(training, updates) for updates in (progress.step, planned))
    shares = [done / whole] if done and whole else []
    if training.max_minutes:
        shares.append(progress.seconds / 60 / training.max_minutes)
    return min(1.0, max(shares)) if shares else None
