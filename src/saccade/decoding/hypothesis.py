"""The result of a search."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search: its tokens, without begin and end symbols, and their log-probabilities."""

    tokens: tuple[int, ...]
    log_probability: float  # sum over the tokens and, if finished, the end symbol
    score: float  # hypotheses are ranked by it: the log-probability after the penalties
    token_log_probabilities: tuple[float, ...]  # one per token, and one for the end symbol if finished
    finished: bool  # False: cut off at the maximum length


IMPOSSIBLE = Hypothesis((), -math.inf, -math.inf, (), finished=False)
"""The result for an input whose outputs all have probability 0, e.g. after a forced token that the model excludes."""


def ranked(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Sort hypotheses, best first; cut-off ones come after all finished ones.

    Cut-off outputs are mostly loops, and loops are probable: their scores are not comparable with finished outputs.
    """
    return sorted(hypotheses, key=lambda hypothesis: (hypothesis.finished, hypothesis.score), reverse=True)
