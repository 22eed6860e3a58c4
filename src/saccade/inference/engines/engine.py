"""The engine protocol: from a request with token ids to hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.inference.batching import SourceIds

EngineName = Literal["auto", "torch", "ctranslate2"]
Precision = Literal["float32", "int8"]

DecodeResults = Generator[tuple[int, list[Hypothesis]], None, None]
"""(index of a source within its request, hypotheses with the best first), in any order; empty sources are left out."""


@dataclass(frozen=True)
class DecodeRequest:
    """Sources to decode with one set of search settings."""

    sources: Sequence[SourceIds]
    settings: DecodingConfig
    input_indices: Sequence[int]  # of each source in the user's input: they key the random numbers
    prefixes: Sequence[Sequence[int]] | None = None
    allowed: Sequence[Sequence[int]] | None = None  # the target tokens that each source may be translated to; None: all
    scores: bool = True  # False: the log-probabilities may be left out, which is faster

    def subset(self, indices: Sequence[int]) -> DecodeRequest:
        """Return the request for some of its sources."""
        return replace(
            self,
            sources=[self.sources[index] for index in indices],
            input_indices=[self.input_indices[index] for index in indices],
            prefixes=None if self.prefixes is None else [self.prefixes[index] for index in indices],
            allowed=None if self.allowed is None else [self.allowed[index] for index in indices],
        )


class Engine(Protocol):
    """Runs searches, either when results are fetched or in the background."""

    @property
    def name(self) -> str:
        """The name of the engine on the command line."""

    @property
    def runs_in_background(self) -> bool:
        """Whether a submitted request makes progress before its results are fetched."""

    def submit(self, request: DecodeRequest) -> Callable[[], DecodeResults]:
        """Submit a request; calling the returned function yields the results as they finish."""
