"""Parity of two engines: equal greedy outputs with equal log-probabilities."""

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
from saccade.inference.batching import SourceIds
from saccade.inference.engines.engine import DecodeRequest, Engine
from saccade.symbols import Symbols
from saccade.untrusted_files import read_text

# Float32 sums in another order change a log-probability by about 1e-5, a wrong weight by far more.
TOLERANCE = 1e-3
RANDOM_SENTENCES = 32  # of random tokens: they cover all parts of the vocabulary
MAX_RANDOM_LENGTH = 24
SOURCES_FILE = "samples/sources.txt"  # in a run directory: the validation sources
MAX_SOURCES = 2_000
MAX_SOURCES_BYTES = 2**22
CHUNK = 128  # sentences between two checks of the time limit
TIME_LIMIT = 5.0  # seconds; a large model has compared enough outputs by then


@dataclass(frozen=True)
class Parity:
    """Agreement of two engines on some sentences."""

    sentences: int
    same: int  # outputs with equal tokens
    ties: int  # other outputs, whose first different tokens are equally probable within rounding
    largest_difference: float  # of the log-probabilities of a token that both engines output
    tolerance: float = TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether all outputs are equal, except for ties, and equally probable."""
        return self.same + self.ties == self.sentences and self.largest_difference <= self.tolerance

    def __add__(self, other: Parity) -> Parity:
        counts = (self.sentences + other.sentences, self.same + other.same, self.ties + other.ties)
        return Parity(*counts, max(self.largest_difference, other.largest_difference))

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data; an infinite difference becomes null, because JSON has no infinity."""
        difference = self.largest_difference if math.isfinite(self.largest_difference) else None
        return {**asdict(self), "largest_difference": difference, "passed": self.passed}


def check_parity(reference: Engine, engine: Engine, sources: Sequence[SourceIds], decoding: DecodingConfig) -> Parity:
    """Compare greedy outputs of two engines on non-empty sources, as many as the time limit allows."""
    began, total = time.perf_counter(), Parity(0, 0, 0, 0.0)
    for first in range(0, len(sources), CHUNK):
        total = total + compare(reference, engine, sources[first : first + CHUNK], decoding)
        if time.perf_counter() - began > TIME_LIMIT:
            break
    return total


def compare(reference: Engine, engine: Engine, sources: Sequence[SourceIds], decoding: DecodingConfig) -> Parity:
    """Compare greedy outputs of two engines on all sources."""
    request = DecodeRequest(sources, greedy_settings(decoding), range(len(sources)))
    same, ties, largest = 0, 0, 0.0
    expected, outputs = dict(reference.submit(request)()), dict(engine.submit(request)())
    for index, [first] in expected.items():
        [second] = outputs[index]
        pairs = zip(first.token_log_probabilities, second.token_log_probabilities, strict=False)
        differences = [abs(one - other) for one, other in pairs]
        position = first_different_position(first, second)
        if position is None:
            same += 1
        else:
            # Each engine chose the token that it found most probable, so the difference bounds how close the two were.
            ties += position < len(differences) and differences[position] <= 2 * TOLERANCE
            differences = differences[:position]
        largest = max([largest, *(math.inf if math.isnan(difference) else difference for difference in differences)])
    return Parity(len(sources), same, ties, largest)


def greedy_settings(decoding: DecodingConfig) -> DecodingConfig:
    """Return the model's own settings, changed to greedy search."""
    plain = {"beam": 1, "nbest": 1, "sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "coverage_beta": 0.0}
    return decoding.model_copy(update=plain)


def first_different_position(one: Hypothesis, other: Hypothesis) -> int | None:
    """Return the first position at which two outputs differ, end symbols included; None if they are equal."""
    if (one.tokens, one.finished) == (other.tokens, other.finished):
        return None
    pairs = zip(one.tokens, other.tokens, strict=False)
    shorter = min(len(one.tokens), len(other.tokens))
    return next((position for position, (first, second) in enumerate(pairs) if first != second), shorter)


def random_sentences(vocabulary: int, max_length: int) -> list[list[int]]:
    """Return sentences of random ids, which depend on the vocabulary size only."""
    generator = np.random.Generator(np.random.Philox(key=vocabulary))
    first = max(vars(Symbols()).values()) + 1
    if vocabulary <= first:
        return []
    lengths = generator.integers(1, min(MAX_RANDOM_LENGTH, max_length) + 1, RANDOM_SENTENCES)
    return [generator.integers(first, vocabulary, length).tolist() for length in lengths]


def validation_sources(run: Path) -> list[str]:
    """Return the validation sources of a run; none if they cannot be read."""
    try:
        return read_text(run / SOURCES_FILE, MAX_SOURCES_BYTES).splitlines()[:MAX_SOURCES]
    except (OSError, ValueError, SaccadeError):
        return []
