from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.inference.engines.engine import DecodeRequest, DecodeResults
from saccade.inference.engines.parity import TOLERANCE, check_parity, random_sentences
from saccade.symbols import Symbols

REFERENCE = Hypothesis((5, 6), -0.6, -0.6, (-0.1, -0.2, -0.3), finished=True)


class FixedEngine:
    """Returns one hypothesis for every source."""

    name = "fixed"
    runs_in_background = False

    def __init__(self, tokens: Sequence[int], log_probabilities: Sequence[float], *, finished: bool = True) -> None:
        total = sum(log_probabilities)
        self.hypothesis = Hypothesis(tuple(tokens), total, total, tuple(log_probabilities), finished=finished)

    def submit(self, request: DecodeRequest) -> Callable[[], DecodeResults]:
        assert request.settings.beam == 1

        def results() -> DecodeResults:
            yield from ((index, [self.hypothesis]) for index in range(len(request.sources)))

        return results


@pytest.mark.parametrize(
    ("engine", "same", "ties", "passed"),
    [
        (FixedEngine((5, 6), (-0.1, -0.2, -0.3)), 3, 0, True),
        (FixedEngine((5, 6), (-0.1, -0.2, -0.3 - TOLERANCE / 2)), 3, 0, True),
        (FixedEngine((5, 6), (-0.1, -0.2 - 2 * TOLERANCE, -0.3)), 3, 0, False),
        (FixedEngine((5, 6), (-0.1, math.nan, -0.3)), 3, 0, False),
        (FixedEngine((5, 7), (-0.1, -0.2 - TOLERANCE, -0.9)), 0, 3, True),
        (FixedEngine((5, 7), (-0.1, -0.2 - 3 * TOLERANCE, -0.3)), 0, 0, False),
        (FixedEngine((5, 6), (-0.1, -0.2), finished=False), 0, 0, False),
    ],
    ids=["equal", "rounding", "another weight", "nan", "tie", "another token", "cut off"],
)
def test_parity_tells_rounding_from_a_difference(engine, same, ties, passed):
    reference = FixedEngine(REFERENCE.tokens, REFERENCE.token_log_probabilities)
    parity = check_parity(reference, engine, [([4],)] * 3, DecodingConfig(beam=5))
    assert (parity.sentences, parity.same, parity.ties, parity.passed) == (3, same, ties, passed)
    values = parity.to_json()
    assert values["passed"] is passed
    assert values["largest_difference"] is None or math.isfinite(values["largest_difference"])


def test_random_sentences_are_reproducible_and_contain_no_special_symbols():
    sentences = random_sentences(50, 9)
    assert sentences == random_sentences(50, 9)
    assert all(1 <= len(ids) <= 9 for ids in sentences)
    special = set(vars(Symbols()).values())
    assert {token for ids in sentences for token in ids} <= set(range(50)) - special
    assert random_sentences(len(special), 9) == []
