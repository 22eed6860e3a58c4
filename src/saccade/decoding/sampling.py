"""Sampling: tokens drawn from the model's distribution, with temperature, top-k and top-p.

The random numbers are a function of (seed, index of the input, number of the sample, position) only, so an input has
the same samples in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints
from saccade.decoding.hypothesis import Hypothesis, ranked
from saccade.decoding.rollout import roll_out
from saccade.decoding.stop_flag import StopFlag
from saccade.interface import Decoder, Memory, select
from saccade.symbols import Symbols


class Distribution(NamedTuple):
    """The distribution that a token is drawn from."""

    weights: Tensor  # (N, C) not negative; they need not sum to 1
    tokens: Tensor | None  # (N, C) the token of each weight; None: the full vocabulary in order


def sample(
    model: Decoder,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    indices: Sequence[int],
    *,
    stop: StopFlag | None = None,
) -> list[list[Hypothesis]]:
    """Draw `nbest` independent samples for each row, best first.

    Log-probabilities and scores are the model's own, at temperature 1 and without truncation.
    """
    copies = torch.arange(len(indices), device=memory.mask.device).repeat_interleave(config.nbest)
    longest = int(constraints.limits.max())
    uniform = uniform_numbers(config.seed, indices, config.nbest, longest).to(memory.mask.device)  # (B·N, T)

    def choose(log_probabilities: Tensor, row: Tensor, position: int) -> Tensor:
        return draw(distribution(log_probabilities, config), uniform[row, position])

    samples = roll_out(model, select(memory, copies), select(constraints, copies), config, symbols, choose, stop=stop)
    return [ranked(samples[first : first + config.nbest]) for first in range(0, len(samples), config.nbest)]


def uniform_numbers(seed: int, indices: Sequence[int], samples: int, positions: int) -> Tensor:
    """Return random numbers in [0, 1), one row for each sample of each input: (B·samples, positions).

    Philox (Salmon et al. 2011) is keyed with seed and index; the sample is the high part of its counter, the position
    the low part.
    """
    numbers = np.empty((len(indices), samples, positions), dtype=np.float32)
    for row, index in enumerate(indices):
        for number in range(samples):
            philox = np.random.Philox(key=[seed, index], counter=[0, 0, number, 0])
            np.random.Generator(philox).random(dtype=np.float32, out=numbers[row, number])
    return torch.from_numpy(numbers.reshape(-1, positions))


def distribution(log_probabilities: Tensor, config: DecodingConfig) -> Distribution:
    """Return the distribution after temperature, top-k and top-p, in this order."""
    if not config.top_k and config.top_p == 1:
        return Distribution((log_probabilities / config.temperature).softmax(dim=1), tokens=None)
    count = min(config.top_k or log_probabilities.size(1), log_probabilities.size(1))
    best = log_probabilities.topk(count, dim=1)  # (N, C), most probable first
    weights = (best.values / config.temperature).softmax(dim=1)
    return Distribution(nucleus(weights, config.top_p), best.indices)


def nucleus(weights: Tensor, mass: float) -> Tensor:
    """Zero all but the smallest set of weights (N, C) that holds `mass`: Holtzman et al. 2020, section 3.1.

    The weights of a row are in descending order and sum to 1.
    """
    if mass == 1:
        return weights
    before = weights.cumsum(dim=1) - weights
    return weights.masked_fill(before >= mass, 0.0)


def draw(source: Distribution, uniform: Tensor) -> Tensor:
    """Draw the tokens (N,) at which the cumulative weight exceeds the fraction `uniform` (N,) of the total."""
    cumulative = source.weights.cumsum(dim=1)  # (N, C)
    column = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)  # (N, 1)
    # If all weights of a row are 0, the search runs past its end; any token is then as impossible as the last one.
    column = column.clamp(max=cumulative.size(1) - 1)
    return (column if source.tokens is None else source.tokens.gather(1, column)).squeeze(1)
