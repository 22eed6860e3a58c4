"""Searches of one sentence in one call, for models that have kernels for all of it (kernels/search.c).

They do what `greedy` and `beam` do, step for step, and find the same but for what rounding decides. A step of a
few hypotheses takes less time than Python takes to ask for it.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints, never_written
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.penalties import length_penalty
from saccade.interface import Decodes, Memory
from saccade.kernels import kernel
from saccade.kernels.transformer import FoundHypotheses, MemoryPlaces, NativeDecoder, Rules, Words
from saccade.symbols import Symbols

SENTENCES = 4
"""So many at most are searched one after the other; a batch of more is faster."""

WIDEST = 16
"""The widest beam."""

LONGEST = 1024
"""The longest output: room for all of it is taken at once."""


@runtime_checkable
class Native(Protocol):
    """A model that may have a search in C."""

    def native(self, memory: Memory) -> NativeDecoder | None:
        """What that needs, or None where there is none."""
        ...


def native_decoder_for(
    model: Decodes, memory: Memory, constraints: Constraints, config: DecodingConfig
) -> NativeDecoder | None:
    """What a search in C needs, if there is one for this model, these settings and this few sentences."""
    limits = constraints.limits
    small = len(limits) <= SENTENCES and config.beam <= WIDEST and int(limits.max()) <= LONGEST
    plain = constraints.on_length_only and not config.sample and not config.coverage_beta
    if not small or not plain or not isinstance(model, Native):
        return None
    return model.native(memory)


def search_natively(
    native: NativeDecoder, constraints: Constraints, config: DecodingConfig, symbols: Symbols
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first."""
    return [
        search_sentence(native, sentence, limit, config, symbols)
        for sentence, limit in enumerate(constraints.limits.tolist())
    ]


class Columns(NamedTuple):
    """Room for what is found: `most` hypotheses of at most `limit` symbols."""

    tokens: Tensor  # (most, limit)
    lengths: Tensor  # (most,)
    finished: Tensor  # (most,)
    token_logs: Tensor  # (most, limit)
    logs: Tensor  # (most,)
    scores: Tensor  # (most,)

    @classmethod
    def empty(cls, most: int, limit: int) -> Columns:
        """Before a search."""
        tokens, numbers = torch.zeros(most, limit, dtype=torch.int64), torch.zeros(most, dtype=torch.int64)
        logs = torch.zeros(most)
        return cls(tokens, numbers, numbers.clone(), torch.zeros(most, limit), logs, logs.clone())


def search_sentence(
    native: NativeDecoder, sentence: int, limit: int, config: DecodingConfig, symbols: Symbols
) -> list[Hypothesis]:
    """The hypotheses of one sentence, best first."""
    never = torch.tensor([*never_written(config.min_length, config, symbols), symbols.end])
    rules = Rules(limit, config.min_length, symbols.begin, symbols.end, len(never), never.data_ptr())
    positions = native.positions(limit)  # (limit, D)
    words = Words(
        *(len(native.output), native.scale, native.embedding.data_ptr(), positions.data_ptr()),
        native.output.data_ptr(),
        None if native.output_bytes is None else ctypes.pointer(native.output_bytes),
    )
    first, counts = native.first[sentence : sentence + 1], native.counts[sentence : sentence + 1]
    longest = int(counts)
    memory = MemoryPlaces(
        native.values.data_ptr(), native.values.size(1), 1, longest, first.data_ptr(), counts.data_ptr()
    )
    penalties = length_penalty(torch.arange(1, limit + 1), config.length_penalty, config.length_alpha)
    columns = Columns.empty(config.nbest, limit)
    found = FoundHypotheses(0, *(column.data_ptr() for column in columns))
    given = ctypes.byref(native.decoder), ctypes.byref(words), memory, ctypes.byref(rules)
    if config.beam == 1:
        kernel("search_greedy", *given, ctypes.byref(found))
        columns.scores[0] = columns.logs[0] / penalties[columns.lengths[0] - 1]
    else:
        beams = config.beam, config.nbest, penalties.data_ptr()
        kernel("search_beam", *given, *beams, ctypes.byref(found))
    return hypotheses(columns, found.count) or [IMPOSSIBLE]


def hypotheses(columns: Columns, count: int) -> list[Hypothesis]:
    """What was found; an output of probability 0 is none."""
    found = []
    for tokens, length, finished, logs, log, score in zip(
        *(column[:count].tolist() for column in columns), strict=True
    ):
        if log > -math.inf:
            written = tuple(tokens[: length - finished])
            found.append(Hypothesis(written, log, score, tuple(logs[:length]), finished=bool(finished)))
    return found
