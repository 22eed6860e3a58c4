"""N-best lists without duplicates: different tokens can spell the same text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from saccade import messages
from saccade.decoding.config import MAX_BEAM, DecodingConfig
from saccade.inference.translation import Candidate

WIDER_SEARCHES = 2  # of a sentence with too few distinct outputs: all of its beam, then twice the beam


def merges_duplicates(settings: DecodingConfig) -> bool:
    """Return whether outputs with equal text are merged; samples are not: their frequency is the information."""
    return settings.nbest > 1 and not settings.sample and not settings.keep_duplicates


def merge_duplicates(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the best candidate of every text, best first; finished ones come before those that were cut off."""
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: (one.finished, one.score), reverse=True):
        best.setdefault(candidate.text, candidate)
    return tuple(best.values())


def wider_search_settings(settings: DecodingConfig) -> DecodingConfig:
    """Return the settings of a search for more hypotheses: for all of the beam, or with twice the beam."""
    beam = settings.beam if settings.nbest < settings.beam else min(2 * settings.beam, MAX_BEAM)
    return settings.model_copy(update={"beam": beam, "nbest": beam})


@dataclass
class ShortListReport:
    """Counts the inputs of a stream that have fewer than n distinct outputs."""

    settings: DecodingConfig
    count: int = 0
    first: int = 0  # index of the first of them
    last: int = -1

    def add(self, index: int) -> None:
        """Count the input at an index; the parts of a long input are counted once."""
        if index != self.last:
            self.first = index if self.count == 0 else min(self.first, index)
            self.count, self.last = self.count + 1, index

    def finish(self) -> None:
        """Show a note with the number of these inputs."""
        if self.count:
            inputs = f"{self.count:,} input{'s have' if self.count > 1 else ' has'}"
            what = f"{inputs} fewer than {self.settings.nbest} different outputs, the first is line {self.first + 1:,}"
            messages.note(f"{what}; a wider beam may find more")
