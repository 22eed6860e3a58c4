"""Searches of all sentences in one call, for models that have kernels for all of it (kernels/search.c).

They do what `greedy` and `beam` do, step for step, and find the same but for what rounding decides. No step waits for
Python, which takes longer to ask for one than a few hypotheses take, and when a sentence ends the next one takes its
place.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from saccade.csrc.abi import (
    HypothesisBuffers,
    NativeDecoder,
    NativeMemory,
    NativeSource,
    PackedMemory,
    SearchLimits,
    SourceBatch,
    TokenTables,
)
from saccade.csrc.library import kernel
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints, never_written
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.penalties import length_penalty
from saccade.decoding.screening import LEAST_ROWS
from saccade.interface import Decodes, Memory, Source
from saccade.ops.int8_linear import quantize
from saccade.symbols import Symbols

WIDEST = 16
"""The widest beam."""

LONGEST = 1024
"""The longest output: room for its tokens is taken at once."""


@runtime_checkable
class Native(Protocol):
    """A model that may have a search in C."""

    def native(self, given: Memory | Source) -> NativeDecoder | None:
        """What that needs to go on from a memory, or from a source, or None where there is none."""
        ...

    def settle(self) -> None:
        """Make once what every search needs, as the weights will hardly change any more."""
        ...


def native_decoder_for(
    model: Decodes, given: Memory | Source, constraints: Constraints, config: DecodingConfig
) -> NativeDecoder | None:
    """What a search in C needs, if there is one for this model and these settings."""
    small = config.beam <= WIDEST and int(constraints.limits.max()) <= LONGEST
    plain = constraints.on_length_only and not config.sample and not config.coverage_beta
    if not small or not plain or not isinstance(model, Native):
        return None
    return model.native(given)


class Columns(NamedTuple):
    """Room for what is found of B sentences: of each at most `most` hypotheses."""

    starts: Tensor  # (B,) where the tokens of each begin
    counts: Tensor  # (B,)
    tokens: Tensor  # (most times the sum of all limits,) those of one hypothesis together, as many as its limit
    lengths: Tensor  # (B, most)
    finished: Tensor  # (B, most)
    token_logs: Tensor  # as the tokens
    logs: Tensor  # (B, most)
    scores: Tensor  # (B, most)

    @classmethod
    def empty(cls, most: int, limits: Tensor) -> Columns:
        """Before a search."""
        ends = most * limits.cumsum(0)
        tokens, lengths = torch.zeros(int(ends[-1]), dtype=torch.int64), limits.new_zeros(len(limits), most)
        logs = torch.zeros(lengths.shape, dtype=torch.float32)
        return cls(
            *(ends - most * limits, torch.zeros_like(limits), tokens, lengths, lengths.clone()),
            *(torch.zeros(len(tokens), dtype=torch.float32), logs, logs.clone()),
        )


def search_natively(
    native: NativeDecoder, constraints: Constraints, config: DecodingConfig, symbols: Symbols, *, scores: bool
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first."""
    limits = constraints.limits.contiguous()
    longest = int(limits.max())
    never = torch.tensor([*never_written(config.min_length, config, symbols), symbols.end])
    penalties = length_penalty(torch.arange(1, longest + 1), config.length_penalty, config.length_alpha)
    positions = native.positions(longest)  # (longest, D)
    made, screen = None, None  # the output layer in bytes, where the largest logit is enough
    if config.beam == 1 and not scores:
        screen = native.output_bytes or native.output_screen
        made = quantize(native.output.detach()) if screen is None and len(limits) >= LEAST_ROWS else None
        screen = screen if made is None else made.structure
    columns = Columns.empty(config.nbest, limits)
    tables = TokenTables(
        *(len(native.output), native.scale),
        *(tensor.data_ptr() for tensor in (native.embedding, positions, native.output)),
        *(None if table is None else ctypes.pointer(table) for table in (native.output_bytes, screen)),
    )
    rules = SearchLimits(
        *(config.min_length, symbols.begin, symbols.end, len(never)),
        *(tensor.data_ptr() for tensor in (never, limits, penalties)),
    )
    sources, memory = input_of(native.given)
    kernel(
        *("search", ctypes.byref(native.decoder), ctypes.byref(tables), sources, memory, ctypes.byref(rules)),
        *(len(limits), config.beam, HypothesisBuffers(config.nbest, *(column.data_ptr() for column in columns)), None),
    )
    return hypotheses(columns, limits, scores=screen is None)


def input_of(given: NativeMemory | NativeSource) -> tuple[Any, PackedMemory]:
    """Sources to be encoded, or a memory; the other one is empty."""
    if isinstance(given, NativeMemory):
        kv = (ctypes.c_void_p * len(given.values))(*(layer.data_ptr() for layer in given.values))
        ranges = given.first.data_ptr(), given.counts.data_ptr(), len(given.first)
        return None, PackedMemory(kv, given.values.size(1), *ranges)
    addresses = (given.embedding, given.positions, given.starts, given.tokens, given.places)
    sizes = len(given.embedding), len(given.positions)
    pointers = (tensor.data_ptr() for tensor in addresses)
    sources = SourceBatch(ctypes.pointer(given.encoder), given.scale, *pointers, *sizes)
    return ctypes.byref(sources), PackedMemory()


def hypotheses(columns: Columns, limits: Tensor, *, scores: bool) -> list[list[Hypothesis]]:
    """What was found of each sentence; an output of probability 0 is none."""
    found = []
    tokens, token_logs = columns.tokens.tolist(), columns.token_logs.tolist() if scores else []
    rows = (columns.starts, limits, columns.counts, columns.lengths, columns.finished, columns.logs, columns.scores)
    for start, limit, count, *own in zip(*(row.tolist() for row in rows), strict=True):
        some = []
        for place, (length, finished, log, score) in enumerate(zip(*(row[:count] for row in own), strict=True)):
            if log == -math.inf:
                continue
            first = start + place * limit
            written = tuple(tokens[first : first + length - finished])
            logs = tuple(token_logs[first : first + length])
            log, score = (log, score) if scores else (math.nan, math.nan)
            some.append(Hypothesis(written, log, score, logs, finished=bool(finished)))
        found.append(some or [IMPOSSIBLE])
    return found
