"""Where a run ends, as far as its settings say so."""

from __future__ import annotations

from saccade.training.config import TrainingConfig

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
