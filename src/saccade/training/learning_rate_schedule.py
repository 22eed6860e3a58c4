"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from saccade.training.config import ScheduleKind, TrainingConfig


def make_schedule(training: TrainingConfig, width: int, total: int | None) -> Callable[[int], float]:
    """Return the schedule of a run; the default peak is that of Vaswani et al. 2017 for this model width."""
    warmup = training.warmup_steps
    peak = training.learning_rate or noam_peak(width, warmup)
    return partial(learning_rate, schedule=training.schedule, peak=peak, warmup=warmup, total=total)


def learning_rate(step: int, *, schedule: ScheduleKind, peak: float, warmup: int, total: int | None) -> float:
    """Return the learning rate of update `step`, counted from 1.

    Every schedule rises linearly to `peak` over `warmup` steps. inverse-sqrt is eq. 3 of Vaswani et al. 2017 with
    peak = (d_model · warmup)^-0.5; linear and cosine decay to 0 at step `total` + 1.
    """
    if step <= warmup:
        return peak * step / warmup
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if schedule == "constant" or total is None:
        return peak
    left = max(0, total - step + 1) / (total - warmup + 1)  # 0 only after the last update
    return peak * (left if schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left))


def noam_peak(width: int, warmup: int) -> float:
    """Return the peak rate of Vaswani et al. 2017, eq. 3: 7.0e-4 for their base model."""
    return float((width * max(warmup, 1)) ** -0.5)
