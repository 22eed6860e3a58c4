"""Whether two engines are the same model: what greedy search makes of some sentences, and how probable it is."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.errors import SaccadeError
from saccade.inference.batching import Reading
from saccade.inference.engine import Engine, Work
from saccade.symbols import Symbols
from saccade.untrusted_files import read_text

# Float32 sums in another order differ by about 1e-5 in a log-probability, a wrong weight by far more.
TOLERANCE = 1e-3
DRAWN = 32  # sentences of random pieces: they look at every part of the vocabulary
LONGEST_DRAWN = 24
SOURCES = "samples/sources.txt"  # of a run: what it was validated on
MOST_SOURCES = 2_000
LARGEST_SOURCES = 2**22  # bytes
TOGETHER = 128  # sentences between two looks at the clock
SECONDS = 5.0  # after which no more are compared: a large model has been compared enough by then


@dataclass(frozen=True)
class Proof:
    """How far two engines agree."""

    sentences: int
    same: int  # outputs with the same tokens
    ties: int  # others, that part where two tokens are as probable as rounding can tell
    largest_difference: float  # of the log-probabilities of a symbol in an output of both
    tolerance: float = TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether all outputs are the same but for ties, and as probable."""
        return self.same + self.ties == self.sentences and self.largest_difference <= self.tolerance

    def with_more(self, other: Proof) -> Proof:
        """Two proofs as one."""
        counts = (self.sentences + other.sentences, self.same + other.same, self.ties + other.ties)
        return Proof(*counts, max(self.largest_difference, other.largest_difference))

    def __str__(self) -> str:
        return (
            f"{self.same} of {self.sentences} greedy outputs are the same, {self.ties} part at a tie; "
            f"log-probabilities differ by up to {self.largest_difference:.1e}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; JSON has no infinity, so one is null."""
        difference = self.largest_difference if math.isfinite(self.largest_difference) else None
        return {**asdict(self), "largest_difference": difference, "passed": self.passed}


def prove(one: Engine, other: Engine, sources: Sequence[Reading], decoding: DecodingConfig) -> Proof:
    """Compare two engines on sources, which are not empty, by greedy search; on as many as a few seconds allow."""
    began, total = time.perf_counter(), Proof(0, 0, 0, 0.0)
    for first in range(0, len(sources), TOGETHER):
        total = total.with_more(compare(one, other, sources[first : first + TOGETHER], decoding))
        if time.perf_counter() - began > SECONDS:
            break
    return total


def compare(one: Engine, other: Engine, sources: Sequence[Reading], decoding: DecodingConfig) -> Proof:
    """Compare two engines on some sources."""
    work = Work(sources, greedy(decoding), range(len(sources)))
    same, ties, largest = 0, 0, 0.0
    found, others_found = dict(one.begin(work)()), dict(other.begin(work)())
    for row, [first] in found.items():
        [second] = others_found[row]
        pairs = zip(first.token_log_probabilities, second.token_log_probabilities, strict=False)
        differences = [abs(mine - others) for mine, others in pairs]
        place = parting(first, second)
        if place is None:
            same += 1
        else:
            # Each has written the symbol that it found most probable there: by how much it was, the difference tells.
            ties += place < len(differences) and differences[place] <= 2 * TOLERANCE
            differences = differences[:place]
        largest = max([largest, *(math.inf if math.isnan(each) else each for each in differences)])
    return Proof(len(sources), same, ties, largest)


def greedy(decoding: DecodingConfig) -> DecodingConfig:
    """A model's own settings, but for what decides which search it is."""
    plain = {"beam": 1, "nbest": 1, "sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "coverage_beta": 0.0}
    return decoding.model_copy(update=plain)


def parting(one: Hypothesis, other: Hypothesis) -> int | None:
    """The first place at which two outputs differ, their ends included, or None."""
    if (one.tokens, one.finished) == (other.tokens, other.finished):
        return None
    pairs = zip(one.tokens, other.tokens, strict=False)
    shorter = min(len(one.tokens), len(other.tokens))
    return next((place for place, (mine, others) in enumerate(pairs) if mine != others), shorter)


def drawn_sentences(vocabulary: int, most: int) -> list[list[int]]:
    """Sentences of random ids, the same ones whenever they are asked for."""
    generator = np.random.Generator(np.random.Philox(key=vocabulary))
    first = max(vars(Symbols()).values()) + 1
    if vocabulary <= first:
        return []
    lengths = generator.integers(1, min(LONGEST_DRAWN, most) + 1, DRAWN)
    return [generator.integers(first, vocabulary, length).tolist() for length in lengths]


def validation_sentences(run: Path) -> list[str]:
    """The sources that a run was validated on; none where there is no run, or none that can be read."""
    try:
        return read_text(run / SOURCES, LARGEST_SOURCES).splitlines()[:MOST_SOURCES]
    except (OSError, ValueError, SaccadeError):
        return []
