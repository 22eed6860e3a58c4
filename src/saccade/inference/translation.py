"""Results of a translator: outputs with their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Candidate:
    """One output for one input."""

    text: str
    tokens: tuple[int, ...]
    score: float  # candidates are ranked by it: log-probability after the penalties
    log_probability: float
    pieces: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]  # of the pieces, and of the end if it was reached; empty without scores
    finished: bool = True  # False: cut off at the maximum length
    parts: tuple[Part, ...] = ()  # of an input that was split because of its length


class Part(NamedTuple):
    """One part of a long input, with its output."""

    source: str
    candidate: Candidate


@dataclass(frozen=True)
class Translation:
    """One input with its outputs, best first."""

    source: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The best output."""
        return self.candidates[0].text


@dataclass(frozen=True)
class ScoredPair:
    """The log-probability of a given target."""

    log_probability: float
    count: int  # tokens, including the end symbol


EMPTY = Candidate("", (), 0.0, 0.0, (), ())
"""The output for an empty line, which stays empty."""
