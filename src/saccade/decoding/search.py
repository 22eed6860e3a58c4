"""The entry to every search: a memory or a source in, hypotheses out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from saccade.decoding.beam import beam_search
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints, constraints_of
from saccade.decoding.greedy import greedy_search
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.native import Native, native_decoder_for, search_natively
from saccade.decoding.sampling import sample
from saccade.decoding.shortlist import BatchVocabulary, Shortlisted
from saccade.interface import Decodes, Memory, Source, Translates
from saccade.symbols import Symbols


@torch.inference_mode()
def search(
    model: Decodes,
    memory: Memory,
    config: DecodingConfig,
    symbols: Symbols,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    indices: Sequence[int] | None = None,
    allowed: Sequence[Sequence[int]] | None = None,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """For each row of the memory its hypotheses, best first.

    Every hypothesis of a row starts with its prefix, and otherwise keeps to the `allowed` tokens of the row, if there
    are such. `indices` are the rows' positions in the user's input (without them 0, 1 …); they key the random numbers,
    so that a sample does not depend on the batch. Without `scores` there may be no log-probabilities, which is faster.
    The model must be in evaluation mode.
    """
    rows = memory.mask.size(0)
    indices = range(rows) if indices is None else indices
    if len(indices) != rows:
        raise ValueError(f"{len(indices)} indices for {rows} rows")
    if rows == 0:
        return []
    if allowed is None:
        constraints = constraints_of(memory.mask, config, symbols, prefixes, longest=model.longest, indices=indices)
        return find(model, memory, constraints, config, symbols, indices, scores=scores)
    vocabulary, device = BatchVocabulary(allowed, prefixes, symbols), memory.mask.device
    forced = None if prefixes is None else [vocabulary.local_ids(prefix) for prefix in prefixes]
    constraints = constraints_of(memory.mask, config, symbols, forced, longest=model.longest, indices=indices)
    constraints = constraints._replace(allowed=vocabulary.allowed(device))
    found = find(Shortlisted(model, vocabulary.tokens.to(device)), memory, constraints, config, symbols, indices)
    return [[vocabulary.hypothesis(hypothesis) for hypothesis in hypotheses] for hypotheses in found]


@torch.inference_mode()
def search_source(
    model: Translates,
    source: Source,
    config: DecodingConfig,
    symbols: Symbols,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    indices: Sequence[int] | None = None,
    allowed: Sequence[Sequence[int]] | None = None,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """The same for each row of a source: encoded first, or in one call with the search where a model can do that."""
    if len(source.mask) == 0:
        return []
    if isinstance(model, Native) and prefixes is None and allowed is None:
        constraints = constraints_of(source.mask, config, symbols, None, longest=model.longest)
        native = native_decoder_for(model, source, constraints, config)
        if native is not None:
            return search_natively(native, constraints, config, symbols, scores=scores)
    memory = model.encode(source)
    return search(model, memory, config, symbols, prefixes=prefixes, indices=indices, allowed=allowed, scores=scores)


def find(
    model: Decodes,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    indices: Sequence[int],
    *,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """By the search that the settings ask for."""
    native = native_decoder_for(model, memory, constraints, config)
    if native is not None:
        return search_natively(native, constraints, config, symbols, scores=scores)
    if config.sample:
        return sample(model, memory, constraints, config, symbols, indices)
    if config.beam == 1:
        return greedy_search(model, memory, constraints, config, symbols, scores=scores)
    return beam_search(model, memory, constraints, config, symbols)
