"""From the settings of a run to the loop that trains its model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from saccade.data.sampling.batch_sampler import Order
from saccade.data.tokenizers.bpe_dropout import Splitting
from saccade.distributed.group import ALONE, Group
from saccade.symbols import Symbols
from saccade.training.compute_settings import Autocast
from saccade.training.config import TrainingConfig
from saccade.training.loop import Loop
from saccade.training.objectives.objective import ObjectiveAt
from saccade.training.optimizers import make_optimizer


def make_loop(
    model: nn.Module,
    objective_at: ObjectiveAt,
    order: Order,
    training: TrainingConfig,
    *,
    rate: Callable[[int], float],
    symbols: Symbols,
    device: torch.device,
    autocast: Autocast,
    group: Group = ALONE,
    splitting: Splitting | None = None,
) -> Loop:
    """The loop with a fresh optimizer; what counts and the rate are functions of the step."""
    return Loop(
        model,
        objective_at,
        make_optimizer(model, training),
        order,
        symbols=symbols,
        rate=rate,
        seed=training.seed,
        accumulate=training.accumulate,
        clip_norm=training.clip_norm,
        device=device,
        group=group,
        autocast=autocast,
        splitting=splitting,
    )
