"""Search with CTranslate2: the weights of a Transformer in a runtime for CPUs.

Greedy search gives the same tokens. Beam search keeps the same hypotheses alive and ranks them by the same scores, but
it is another one in two respects: it looks for an end among the first K continuations of a sentence, not the first 2K,
and it stops at K ends, not when nothing alive could win any more (docs/guide/engines.md has figures).

It knows one maximum length for a batch, not one a sentence. What is longer than its own is cut off in greedy search and
left out in beam search, which gives the same. Where too little is left, or the table of positions is too short, torch
searches again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import torch

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import length_limits
from saccade.decoding.hypothesis import Hypothesis, ranked
from saccade.decoding.penalties import length_penalty
from saccade.inference.batching import Reading, length_batches
from saccade.inference.engine import Engine, Found, Work
from saccade.symbols import Symbols

PATIENCE = 1.0  # times the beam: so many ends are found before a beam search stops
AHEAD = 2  # batches that are begun for each worker: one that runs, one that waits for it
NO_PENALTY = 1e-9  # to the power of it every length is 1; at 0 itself the search would stop at the first end
SYMBOLS = 4  # that may all be forbidden at some place
BATCH = 1024  # tokens at once for each worker in greedy search, twice as many in beam search


class Batch(NamedTuple):
    """Sources of like length that are searched together."""

    rows: list[int]
    limit: int  # the most symbols of any of them


def refusal(
    settings: DecodingConfig, vocabulary: int, *, prefixes: bool = False, shortlist: bool = False
) -> str | None:
    """What CTranslate2 cannot do the way our searches do it, or None; `vocabulary` is that of the target."""
    if settings.sample:
        return "its random numbers depend on the batch, so that a seed would not say what is drawn"
    if settings.coverage_beta:
        return "its coverage penalty is another one"
    if prefixes:
        return "it does not score forced prefixes"
    if shortlist:
        return "its shortlists are those of whole batches, so that a sentence would depend on its neighbours"
    if settings.beam > 1 and 2 * settings.beam > vocabulary - SYMBOLS:
        return f"a beam of {settings.beam} is too wide for a vocabulary of {vocabulary}"
    return None


class CTranslate2Engine:
    """A loaded runtime; `fallback` takes the sentences that it cannot do."""

    name = "ctranslate2"
    works_ahead = True

    def __init__(
        self, runtime: Any, *, vocabulary: int, places: int, longest: int | None, symbols: Symbols, fallback: Engine
    ) -> None:
        """Tokens are named by their ids, below `vocabulary`; the runtime knows `places`, the model itself `longest`."""
        self.runtime = runtime
        self.workers = int(runtime.num_translators)
        self.names = [str(token) for token in range(vocabulary)]
        self.places = places
        self.longest = math.inf if longest is None else longest
        self.symbols = symbols
        self.fallback = fallback

    def begin(self, work: Work) -> Callable[[], Found]:
        """Begin the first batches; each one that is fetched makes room for another."""
        settings, limit = work.settings, self.limits(work.settings)
        lengths = [len(source[0]) for source in work.sources]
        most = min(BATCH if settings.beam == 1 else 2 * BATCH, max(1, settings.tokens_at_once // self.workers))
        fitting = [length if self.fits(length, settings) else 0 for length in lengths]
        batches = [Batch(rows, limit(lengths[rows[0]])) for rows in length_batches(fitting, most)]
        options, divisors = self.options(settings), self.divisors(settings)
        running = begun([partial(self.start, work, batch, options) for batch in batches], AHEAD * self.workers)

        def finish() -> Found:
            again = [row for row, length in enumerate(lengths) if length and not self.fits(length, settings)]
            for batch, results in zip(batches, running, strict=True):
                found: dict[int, list[Hypothesis]] = {}
                for row, result in zip(batch.rows, results, strict=True):
                    hypotheses = self.read(result.result(), limit(lengths[row]), work, divisors)
                    if hypotheses is None:
                        again.append(row)
                    else:
                        found[row] = hypotheses
                if work.scores:
                    self.score(work, found)
                for row, hypotheses in found.items():
                    yield row, self.rank(hypotheses, settings, divisors)
            if again:
                with closing(self.fallback.begin(work.part(again))()) as others:
                    yield from ((again[row], found) for row, found in others)

        return finish

    def fits(self, length: int, settings: DecodingConfig) -> bool:
        """Whether the table of positions has room for a source with its end, and for the shortest output."""
        return max(length, settings.min_length) < self.places

    def limits(self, settings: DecodingConfig) -> Callable[[int], int]:
        """From the ids of a source to the most symbols of its output, as the searches of `decoding` count them."""

        @cache
        def limit(length: int) -> int:
            mask = torch.ones(1, length + 1, dtype=torch.bool)
            return int(min(int(length_limits(mask, settings)), self.longest))

        return limit

    def options(self, settings: DecodingConfig) -> dict[str, Any]:
        """The settings in the runtime's words; a length counts the end, as ours does."""
        options: dict[str, Any] = {
            "beam_size": settings.beam,
            "min_decoding_length": settings.min_length,
            "max_input_length": 0,
            "disable_unk": not settings.allow_unknown,
            "suppress_sequences": [[self.names[self.symbols.pad]], [self.names[self.symbols.begin]]],
            "return_end_token": True,
            "asynchronous": True,
        }
        if settings.beam > 1:
            ends = math.floor(PATIENCE * settings.beam + 0.5)  # as the runtime rounds it
            options |= {"patience": PATIENCE, "num_hypotheses": ends}
            options |= {"length_penalty": NO_PENALTY, "return_scores": True}
        return options

    def start(self, work: Work, batch: Batch, options: dict[str, Any]) -> list[Any]:
        """Hand a batch to the workers."""
        sources = [self.named(work.sources[row]) for row in batch.rows]
        most = min(batch.limit, self.places)
        return list(self.runtime.translate_batch(sources, max_decoding_length=most, **options))

    def named(self, reading: Reading) -> list[str]:
        """A source as the runtime reads it, with the end symbol, which it does not add itself."""
        return [*map(self.names.__getitem__, reading[0]), self.names[self.symbols.end]]

    def read(self, result: Any, limit: int, work: Work, divisors: Sequence[float]) -> list[Hypothesis] | None:
        """What the runtime found for one source, or None if that is not what our search would find."""
        if work.settings.beam == 1:
            names = result.hypotheses[0][:limit]
            if len(names) == self.places and not self.has_ended(names):
                return None  # the table of positions has no room for more, not even to score an end
            return [self.hypothesis(names, math.nan)]
        found = zip(result.hypotheses, result.scores, strict=True)
        ended = [each for each in found if len(each[0]) <= limit and self.has_ended(each[0])]
        if len(ended) < work.settings.nbest:
            return None
        if not work.scores:  # else all of them are scored anew
            ended.sort(key=lambda each: -each[1] / divisors[len(each[0]) - 1])
            ended = ended[: work.settings.nbest]
        return [self.hypothesis(*each) for each in ended]

    def has_ended(self, names: Sequence[str]) -> bool:
        """Whether an output is whole."""
        return bool(names) and names[-1] == self.names[self.symbols.end]

    def hypothesis(self, names: Sequence[str], log_probability: float) -> Hypothesis:
        """Some symbols as a hypothesis that has no score yet."""
        finished = self.has_ended(names)
        tokens = tuple(map(int, names[:-1] if finished else names))
        return Hypothesis(tokens, log_probability, math.nan, (), finished=finished)

    def score(self, work: Work, found: Mapping[int, list[Hypothesis]]) -> None:
        """Put in the log-probability of every symbol, which the runtime's search does not tell, by forced decoding."""
        places = [(row, rank) for row, hypotheses in found.items() for rank in range(len(hypotheses))]
        sources = [self.named(work.sources[row]) for row, _ in places]
        targets = [[*map(self.names.__getitem__, found[row][rank].tokens)] for row, rank in places]
        scored = self.runtime.score_batch(
            sources, targets, max_input_length=0, max_batch_size=BATCH, batch_type="tokens"
        )
        for (row, rank), result in zip(places, scored, strict=True):
            hypothesis = found[row][rank]
            parts = tuple(result.log_probs[: len(hypothesis.tokens) + hypothesis.finished])
            found[row][rank] = replace(hypothesis, log_probability=math.fsum(parts), token_log_probabilities=parts)

    def divisors(self, settings: DecodingConfig) -> list[float]:
        """What the log-probability of an output is divided by, of length 1 first."""
        lengths = torch.arange(1, self.places + 1)
        penalties: list[float] = length_penalty(lengths, settings.length_penalty, settings.length_alpha).tolist()
        return penalties

    def rank(
        self, hypotheses: Sequence[Hypothesis], settings: DecodingConfig, divisors: Sequence[float]
    ) -> list[Hypothesis]:
        """The n best of a source, with their scores."""
        scored = [
            replace(each, score=each.log_probability / divisors[len(each.tokens) + each.finished - 1])
            for each in hypotheses
        ]
        return ranked(scored)[: settings.nbest]


Begun = TypeVar("Begun")


def begun(starts: Sequence[Callable[[], Begun]], most: int) -> Iterator[Begun]:
    """What each of `starts` gives, in order; the first `most` of them are called at once, one more for each taken."""
    running = deque(start() for start in starts[:most])

    def taken() -> Iterator[Begun]:
        for number in range(len(starts)):
            yield running.popleft()
            if number + most < len(starts):
                running.append(starts[number + most]())

    return taken()
