from __future__ import annotations

import math

import pytest

from saccade.errors import SaccadeError
from saccade.evaluation.perplexity import bits_per_token, perplexity, perplexity_score


def test_a_uniform_distribution_over_eight_tokens_has_perplexity_8_and_3_bits() -> None:
    total = 10 * math.log(8)
    assert perplexity(total, 10) == pytest.approx(8)
    assert bits_per_token(total, 10) == pytest.approx(3)
    result = perplexity_score(total, 10)
    assert (result.name, result.higher_is_better) == ("perplexity", False)
    assert result.value == pytest.approx(8)
    assert result.details == pytest.approx({"bits_per_token": 3, "nats_per_token": math.log(8), "tokens": 10})


def test_perplexity_of_large_and_undefined_losses() -> None:
    assert perplexity(1e6, 1) == math.inf
    assert perplexity(math.inf, 1) == math.inf
    assert math.isnan(perplexity(math.nan, 1))


def test_perplexity_of_no_tokens_is_an_error() -> None:
    with pytest.raises(SaccadeError, match=r"token.* 0"):
        perplexity(0.0, 0)
