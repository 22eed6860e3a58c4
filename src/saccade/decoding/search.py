"""The entry point of every search: from a request to hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch

from saccade.decoding.beam import beam_search
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints, constraints_of
from saccade.decoding.greedy import greedy_search
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.sampling import sample
from saccade.decoding.shortlist import BatchVocabulary, Shortlisted
from saccade.decoding.stop_flag import StopFlag
from saccade.interface import Decoder, Encoder, Memory, Source
from saccade.symbols import Symbols


@dataclass(frozen=True)
class SearchRequest:
    """A batch of sentences and how to search for their outputs."""

    given: Source | Memory  # the sources, or their encoder output
    config: DecodingConfig
    symbols: Symbols
    prefixes: Sequence[Sequence[int]] | None = None  # the forced first tokens of each sentence
    indices: Sequence[int] | None = None  # positions in the user's input, keys of the random numbers; default 0, 1, …
    allowed: Sequence[Sequence[int]] | None = None  # the only tokens that each sentence's output may contain
    scores: bool = True  # whether log-probabilities are needed; without them greedy search is faster
    stop: StopFlag | None = None  # ends the search with SearchStoppedError


@runtime_checkable
class CompiledSearch(Protocol):
    """A plan that may run a whole search in one call (plans/)."""

    def search(self, request: SearchRequest, constraints: Constraints) -> list[list[Hypothesis]] | None:
        """Return the hypotheses of each sentence, best first; None if the request needs a search of this package."""


@torch.inference_mode()
def search(model: Decoder, request: SearchRequest) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence of a request, best first; the model must be in evaluation mode."""
    given, config, symbols = request.given, request.config, request.symbols
    sentences = given.mask.size(0)
    if request.indices is not None and len(request.indices) != sentences:
        raise ValueError(f"{len(request.indices)} indices for {sentences} sentences")
    if sentences == 0:
        return []
    if request.allowed is not None:
        return search_shortlisted(model, request, request.allowed)
    constraints = constraints_of(
        given.mask,
        config,
        symbols,
        request.prefixes,
        max_target_positions=model.max_target_positions,
        indices=request.indices,
    )
    if isinstance(model, CompiledSearch):
        found = model.search(request, constraints)
        if found is not None:
            return found
    return search_memory(model, memory_of(model, given), constraints, request)


def search_shortlisted(
    model: Decoder, request: SearchRequest, allowed: Sequence[Sequence[int]]
) -> list[list[Hypothesis]]:
    """Search with an output layer that has only the allowed tokens of the batch."""
    memory, symbols = memory_of(model, request.given), request.symbols
    vocabulary, device = BatchVocabulary(allowed, request.prefixes, symbols), memory.mask.device
    forced = None if request.prefixes is None else [vocabulary.local_ids(prefix) for prefix in request.prefixes]
    constraints = constraints_of(
        memory.mask,
        request.config,
        symbols,
        forced,
        max_target_positions=model.max_target_positions,
        indices=request.indices,
    )
    constraints = constraints._replace(allowed=vocabulary.allowed(device))
    found = search_memory(Shortlisted(model, vocabulary.tokens.to(device)), memory, constraints, request)
    return [[vocabulary.hypothesis(hypothesis) for hypothesis in hypotheses] for hypotheses in found]


def search_memory(
    model: Decoder, memory: Memory, constraints: Constraints, request: SearchRequest
) -> list[list[Hypothesis]]:
    """Run sampling, greedy search or beam search, depending on the settings."""
    config, symbols = request.config, request.symbols
    if config.sample:
        indices = range(memory.mask.size(0)) if request.indices is None else request.indices
        return sample(model, memory, constraints, config, symbols, indices, stop=request.stop)
    if config.beam == 1:
        return greedy_search(model, memory, constraints, config, symbols, scores=request.scores, stop=request.stop)
    return beam_search(model, memory, constraints, config, symbols, stop=request.stop)


def memory_of(model: Decoder, given: Source | Memory) -> Memory:
    """Return the encoded batch."""
    return given if isinstance(given, Memory) else cast("Encoder", model).encode(given)
