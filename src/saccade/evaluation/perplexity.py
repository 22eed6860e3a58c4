"""Perplexity and bits per token."""

from __future__ import annotations

import math

from saccade.errors import SaccadeError
from saccade.evaluation.metrics import Score


def perplexity(total_negative_log_likelihood: float, count: int) -> float:
    """Return exp of the mean negative log-likelihood in nats; infinite on overflow."""
    try:
        return math.exp(nats_per_token(total_negative_log_likelihood, count))
    except OverflowError:
        return math.inf


def bits_per_token(total_negative_log_likelihood: float, count: int) -> float:
    """Return the mean negative log-likelihood in bits: log2 of the perplexity."""
    return nats_per_token(total_negative_log_likelihood, count) / math.log(2)


def nats_per_token(total_negative_log_likelihood: float, count: int) -> float:
    """Return the mean negative log-likelihood in nats."""
    if count <= 0:
        raise SaccadeError(f"perplexity needs at least one token, not {count}")
    return total_negative_log_likelihood / count


def perplexity_score(total_negative_log_likelihood: float, count: int) -> Score:
    """Return perplexity as a score; values are comparable only between models with the same tokenizer."""
    details = {
        "bits_per_token": bits_per_token(total_negative_log_likelihood, count),
        "nats_per_token": nats_per_token(total_negative_log_likelihood, count),
        "tokens": float(count),
    }
    value = perplexity(total_negative_log_likelihood, count)
    return Score("perplexity", value, signature=None, higher_is_better=False, details=details)
