"""Penalties that make hypotheses of different lengths comparable: Wu et al. 2016 (GNMT), section 7, equation 14.

s(Y, X) = log P(Y | X) / lp(Y) + cp(X; Y)
"""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.decoding.config import LengthPenalty


def length_penalty(length: Tensor, kind: LengthPenalty, alpha: float) -> Tensor:
    """Return the length penalty lp(Y) that divides a log-probability; `length` includes the end symbol.

    It is finite for any alpha: an infinite one would turn a log-probability of -inf into NaN.
    """
    length, largest = length.to(torch.float32), torch.finfo(torch.float32).max
    match kind:
        case "gnmt":
            return (((5 + length) / 6) ** alpha).clamp(max=largest)
        case "plain":
            return (length**alpha).clamp(max=largest)
        case "none":
            return torch.ones_like(length)


def coverage_penalty(coverage: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Return the coverage penalty cp(X; Y) (N,), at most 0, from coverage and mask (N, S); mask: True = real position.

    Coverage is attention summed over the target. Departure from the paper: a source position without any attention
    costs log(1.2e-38), so that the score is finite.
    """
    log_coverage = coverage.clamp(min=torch.finfo(torch.float32).tiny, max=1.0).log()  # (N, S)
    return beta * log_coverage.masked_fill(~mask, 0.0).sum(dim=1)
