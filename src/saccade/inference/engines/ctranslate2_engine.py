"""The CTranslate2 engine: the weights of a Transformer in a runtime for CPUs.

Greedy search gives equal tokens. Beam search keeps the same hypotheses and ranks them by the same scores, with two
differences: it considers end symbols among the K best continuations of a sentence, not the 2K best, and it stops after
K finished hypotheses, not when no live hypothesis could win any more (docs/guide/engines.md has figures).

The runtime has one maximum length per batch, not one per sentence. An output that exceeds the limit of its sentence is
cut off in greedy search and left out in beam search, as in our searches. If fewer hypotheses than requested are left,
or the position table is too short, torch decodes the sentence again.
"""

from __future__ import annotations

import math
import time
import weakref
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
from saccade.inference.batching import SourceIds, length_batches
from saccade.inference.engines.engine import DecodeRequest, DecodeResults, Engine
from saccade.symbols import Symbols

PATIENCE = 1.0  # a beam search stops after this many times K finished hypotheses
BATCHES_PER_WORKER = 2  # submitted in advance: one that runs, one that waits
NO_PENALTY = 1e-9  # length ** 1e-9 is 1; with 0 itself the runtime would stop at the first end symbol
MAX_SUPPRESSED = 4  # tokens that may be suppressed at one position
MIN_SLEEP, MAX_SLEEP = 1e-4, 1e-2  # seconds between two checks whether a result is done
BATCH_TOKENS = 1024  # per worker in greedy search; beam search takes twice as many


PENDING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Results of the runtime that were not fetched: a batch that runs cannot be stopped."""


class Batch(NamedTuple):
    """Sources of similar length that are decoded together."""

    indices: list[int]  # within the request
    limit: int  # maximum output length of the longest source


def unsupported(
    settings: DecodingConfig, target_vocabulary: int, *, prefixes: bool = False, shortlist: bool = False
) -> str | None:
    """Why CTranslate2 does not support these settings with our results, or None."""
    if settings.sample:
        return "its random numbers depend on the batch, so a seed would not determine the samples"
    if settings.coverage_beta:
        return "its coverage penalty differs from ours"
    if prefixes:
        return "it does not score forced prefixes"
    if shortlist:
        return "its shortlist is one for all sentences of a batch, so an output would depend on the others"
    if settings.beam > 1 and 2 * settings.beam > target_vocabulary - MAX_SUPPRESSED:
        return f"a beam of {settings.beam} is too wide for a vocabulary of {target_vocabulary}"
    return None


class CTranslate2Engine:
    """A loaded runtime, with a fallback engine for the sentences that it does not support."""

    name = "ctranslate2"
    runs_in_background = True

    def __init__(
        self,
        runtime: Any,
        *,
        vocabulary: int,
        positions: int,
        max_target_positions: int | None,
        symbols: Symbols,
        fallback: Engine,
    ) -> None:
        """The names of tokens are their ids as strings, below `vocabulary`.

        `positions` is the size of the runtime's position table, `max_target_positions` that of the model itself.
        """
        self.runtime = runtime
        self.workers = int(runtime.num_translators)
        self.token_names = [str(token) for token in range(vocabulary)]
        self.positions = positions
        self.max_target_positions = math.inf if max_target_positions is None else max_target_positions
        self.symbols = symbols
        self.fallback = fallback

    def submit(self, request: DecodeRequest) -> Callable[[], DecodeResults]:
        """Submit the first batches to the runtime; each fetched batch makes room for the next one."""
        settings, limit = request.settings, self.limits(request.settings)
        lengths = [len(source[0]) for source in request.sources]
        batch_tokens = BATCH_TOKENS if settings.beam == 1 else 2 * BATCH_TOKENS
        batch_tokens = min(batch_tokens, max(1, settings.tokens_at_once // self.workers))
        fitting = [length if self.fits(length, settings) else 0 for length in lengths]
        batches = [Batch(indices, limit(lengths[indices[0]])) for indices in length_batches(fitting, batch_tokens)]
        options, divisors = self.options(settings), self.divisors(settings)
        starts = [partial(self.start, request, batch, options) for batch in batches]
        running = prefetch(starts, BATCHES_PER_WORKER * self.workers)

        def results() -> DecodeResults:
            unsolved = [index for index, length in enumerate(lengths) if length and not self.fits(length, settings)]
            for batch, pending in zip(batches, running, strict=True):
                finished: dict[int, list[Hypothesis]] = {}
                for index, result in zip(batch.indices, pending, strict=True):
                    hypotheses = self.hypotheses(wait_for(result), limit(lengths[index]), request, divisors)
                    if hypotheses is None:
                        unsolved.append(index)
                    else:
                        finished[index] = hypotheses
                if request.scores:
                    self.score(request, finished)
                for index, hypotheses in finished.items():
                    yield index, self.rank(hypotheses, settings, divisors)
            if unsolved:
                with closing(self.fallback.submit(request.subset(unsolved))()) as others:
                    yield from ((unsolved[number], hypotheses) for number, hypotheses in others)

        return results

    def fits(self, length: int, settings: DecodingConfig) -> bool:
        """Return whether the position table has room for a source with its end symbol, and for the shortest output."""
        return max(length, settings.min_length) < self.positions

    def limits(self, settings: DecodingConfig) -> Callable[[int], int]:
        """Return a function from the number of source ids to the maximum output length, as in `decoding/`."""

        @cache
        def limit(length: int) -> int:
            mask = torch.ones(1, length + 1, dtype=torch.bool)
            return int(min(int(length_limits(mask, settings)), self.max_target_positions))

        return limit

    def options(self, settings: DecodingConfig) -> dict[str, Any]:
        """Return the settings as options of the runtime; a length includes the end symbol there too."""
        options: dict[str, Any] = {
            "beam_size": settings.beam,
            "min_decoding_length": settings.min_length,
            "max_input_length": 0,
            "disable_unk": not settings.allow_unknown,
            "suppress_sequences": [[self.token_names[self.symbols.pad]], [self.token_names[self.symbols.begin]]],
            "return_end_token": True,
            "asynchronous": True,
        }
        if settings.beam > 1:
            count = math.floor(PATIENCE * settings.beam + 0.5)  # as the runtime rounds it
            options |= {"patience": PATIENCE, "num_hypotheses": count}
            options |= {"length_penalty": NO_PENALTY, "return_scores": True}
        return options

    def start(self, request: DecodeRequest, batch: Batch, options: dict[str, Any]) -> list[Any]:
        """Submit a batch to the runtime; one pending result per source."""
        sources = [self.named_tokens(request.sources[index]) for index in batch.indices]
        limit = min(batch.limit, self.positions)
        pending = list(self.runtime.translate_batch(sources, max_decoding_length=limit, **options))
        PENDING.update(pending)
        return pending

    def named_tokens(self, source: SourceIds) -> list[str]:
        """Return the token names of a source, with the end symbol, which the runtime does not add."""
        return [*map(self.token_names.__getitem__, source[0]), self.token_names[self.symbols.end]]

    def hypotheses(
        self, result: Any, limit: int, request: DecodeRequest, divisors: Sequence[float]
    ) -> list[Hypothesis] | None:
        """Return the hypotheses of one source; None if our search would not give them."""
        if request.settings.beam == 1:
            names = result.hypotheses[0][:limit]
            if len(names) == self.positions and not self.is_finished(names):
                return None  # the position table has no room for the next token, not even to score an end symbol
            return [self.hypothesis(names, math.nan)]
        outputs = [
            output
            for output in zip(result.hypotheses, result.scores, strict=True)
            if len(output[0]) <= limit and self.is_finished(output[0])
        ]
        if len(outputs) < request.settings.nbest:
            return None
        if not request.scores:  # otherwise all are ranked after forced decoding
            outputs.sort(key=lambda output: -output[1] / divisors[len(output[0]) - 1])
            outputs = outputs[: request.settings.nbest]
        return [self.hypothesis(*output) for output in outputs]

    def is_finished(self, names: Sequence[str]) -> bool:
        """Return whether an output ends with the end symbol."""
        return bool(names) and names[-1] == self.token_names[self.symbols.end]

    def hypothesis(self, names: Sequence[str], log_probability: float) -> Hypothesis:
        """Return an output as a hypothesis without a score."""
        finished = self.is_finished(names)
        tokens = tuple(map(int, names[:-1] if finished else names))
        return Hypothesis(tokens, log_probability, math.nan, (), finished=finished)

    def score(self, request: DecodeRequest, outputs: Mapping[int, list[Hypothesis]]) -> None:
        """Add the log-probability of every token by forced decoding: the runtime's search does not return them."""
        keys = [(index, rank) for index, hypotheses in outputs.items() for rank in range(len(hypotheses))]
        sources = [self.named_tokens(request.sources[index]) for index, _ in keys]
        targets = [[*map(self.token_names.__getitem__, outputs[index][rank].tokens)] for index, rank in keys]
        scored = self.runtime.score_batch(
            sources, targets, max_input_length=0, max_batch_size=BATCH_TOKENS, batch_type="tokens"
        )
        for (index, rank), result in zip(keys, scored, strict=True):
            hypothesis = outputs[index][rank]
            token_scores = tuple(result.log_probs[: len(hypothesis.tokens) + hypothesis.finished])
            outputs[index][rank] = replace(
                hypothesis, log_probability=math.fsum(token_scores), token_log_probabilities=token_scores
            )

    def divisors(self, settings: DecodingConfig) -> list[float]:
        """Return the length penalties of outputs of length 1, 2, …: they divide the log-probability."""
        lengths = torch.arange(1, self.positions + 1)
        penalties: list[float] = length_penalty(lengths, settings.length_penalty, settings.length_alpha).tolist()
        return penalties

    def rank(
        self, hypotheses: Sequence[Hypothesis], settings: DecodingConfig, divisors: Sequence[float]
    ) -> list[Hypothesis]:
        """Return the n best hypotheses of a source, with their scores."""
        scored = [
            replace(
                hypothesis,
                score=hypothesis.log_probability / divisors[len(hypothesis.tokens) + hypothesis.finished - 1],
            )
            for hypothesis in hypotheses
        ]
        return ranked(scored)[: settings.nbest]


def wait_for(result: Any) -> Any:
    """Wait for a result of the runtime, in short sleeps: Python cannot handle Ctrl-C while the runtime waits."""
    seconds = MIN_SLEEP
    while not result.done():
        time.sleep(seconds)
        seconds = min(2 * seconds, MAX_SLEEP)
    PENDING.discard(result)
    return result.result()


def is_busy() -> bool:
    """Return whether a runtime works on batches; its destructor would wait for their end."""
    return any(not result.done() for result in PENDING)


Started = TypeVar("Started")


def prefetch(starts: Sequence[Callable[[], Started]], ahead: int) -> Iterator[Started]:
    """Call `starts` in order and yield the results: the first `ahead` now, one more whenever a result is taken."""
    running = deque(start() for start in starts[:ahead])

    def results() -> Iterator[Started]:
        for number in range(len(starts)):
            yield running.popleft()
            if number + ahead < len(starts):
                running.append(starts[number + ahead]())

    return results()
