"""What a search returns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search: its tokens, without begin and end, and what the model thinks of them."""

    tokens: tuple[int, ...]
    log_probability: float  # the sum of the tokens' and, if finished, of the end's
    score: float  # what hypotheses are ranked by: the log-probability after the penalties
    token_log_probabilities: tuple[float, ...]  # one for each token, and one for the end if finished
    finished: bool  # False: cut off at the maximum length


IMPOSSIBLE = Hypothesis((), -math.inf, -math.inf, (), finished=False)
"""Stands for an input whose every output has probability 0, e.g. after a forced token that the model excludes."""


def ranked(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The hypotheses, best first; a cut-off one comes after every finished one.

    Cut-off outputs are mostly loops, and loops are probable: their scores do not compare with those of whole outputs.
    """
    return sorted(hypotheses, key=lambda hypothesis: (hypothesis.finished, hypothesis.score), reverse=True)
