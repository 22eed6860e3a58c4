"""Penalties that make hypotheses of different lengths comparable: Wu et al. 2016 (GNMT), section 7, equation 14.

s(Y, X) = log P(Y | X) / lp(Y) + cp(X; Y)
"""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.decoding.config import LengthPenalty


def length_penalty(length: Tensor, kind: LengthPenalty, alpha: float) -> Tensor:
    """The lp(Y) that divides a log-probability; `length` counts every scored symbol, the end too.

    It stays finite for any alpha: an infinite one would make NaN of what is impossible.
    """
    length, most = length.to(torch.float32), torch.finfo(torch.float32).max
    match kind:
        case "gnmt":
            return (((5 + length) / 6) ** alpha).clamp(max=most)
        case "plain":
            return (length**alpha).clamp(max=most)
        case "none":
            return torch.ones_like(length)


def coverage_penalty(coverage: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The cp(X; Y) of attention summed over the target positions: (N, S), (N, S) to (N,), at most 0.

    A departure from the paper: a position that was never looked at costs log(1.2e-38), so that a score stays finite.
    """
    seen = coverage.clamp(min=torch.finfo(torch.float32).tiny, max=1.0).log()  # (N, S)
    return beta * seen.masked_fill(~mask, 0.0).sum(dim=1)
