"""Greedy and beam search of all sentences in one call (csrc/transformer_search.c).

The kernel runs the algorithms of `decoding/greedy.py` and `decoding/beam.py`, with equal results up to rounding. No
step waits for Python, and when a sentence ends the next one takes its slot (continuous batching).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.decoding.constraints import Constraints, suppressed_tokens
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.penalties import length_penalty
from saccade.decoding.search import SearchRequest
from saccade.decoding.stop_flag import check_stop
from saccade.ops.arguments import address
from saccade.ops.int8_linear import QuantizedMatrix
from saccade.ops.kernel_abi import (
    DecoderStack,
    EncoderStack,
    HypothesisBuffers,
    PackedMemory,
    SearchLimits,
    SourceBatch,
    TokenTables,
)
from saccade.ops.kernel_library import kernel

MAX_BEAM = 16
"""The widest beam."""

MAX_OUTPUT_LENGTH = 1024
"""The longest output: memory for its tokens is allocated at once."""


@dataclass(frozen=True)
class EncodedBatch:
    """Keys and values of B encoded sentences."""

    kv: list[Tensor]  # of each layer (M, 2D)
    first: Tensor  # (B,) the first row of each sentence
    counts: Tensor  # (B,) its number of rows


@dataclass(frozen=True)
class SourceTokens:
    """B sentences of N tokens that the search itself encodes."""

    encoder: EncoderStack
    embedding: Tensor  # (V, D)
    scale: float
    positions: Tensor  # (longest, D)
    cu_seqlens: Tensor  # (B + 1,)
    tokens: Tensor  # (N,)
    position_ids: Tensor  # (N,)


@dataclass(frozen=True)
class OutputTables:
    """The target embedding and output layer of a search."""

    embedding: Tensor  # (V, D)
    scale: float
    positions: Callable[[int], Tensor]  # from a length to (length, D)
    output: Tensor  # (V, D)
    int8: QuantizedMatrix | None  # the output layer in int8, for int8 logits
    screen: QuantizedMatrix | None  # the output layer in int8, to find the largest float32 logit


class Buffers(NamedTuple):
    """Output buffers for the hypotheses of B sentences, at most `nbest` per sentence."""

    starts: Tensor  # (B,) where the tokens of each sentence begin
    counts: Tensor  # (B,)
    tokens: Tensor  # (nbest times the sum of all limits,); a hypothesis has `limit` slots
    lengths: Tensor  # (B, nbest)
    finished: Tensor  # (B, nbest)
    token_log_probabilities: Tensor  # as the tokens
    log_probabilities: Tensor  # (B, nbest)
    scores: Tensor  # (B, nbest)

    @classmethod
    def empty(cls, nbest: int, limits: Tensor) -> Buffers:
        """Allocate buffers for outputs within these limits (B,)."""
        ends = nbest * limits.cumsum(0)
        tokens, lengths = limits.new_zeros(int(ends[-1])), limits.new_zeros(len(limits), nbest)
        scores = limits.new_zeros(lengths.shape, dtype=torch.float32)
        return cls(
            *(ends - nbest * limits, torch.zeros_like(limits), tokens, lengths, lengths.clone()),
            *(limits.new_zeros(len(tokens), dtype=torch.float32), scores, scores.clone()),
        )


def supports(request: SearchRequest, constraints: Constraints) -> bool:
    """Return whether the kernel supports a request."""
    config = request.config
    plain = request.prefixes is None and request.allowed is None and constraints.only_lengths_differ
    small = config.beam <= MAX_BEAM and int(constraints.limits.max()) <= MAX_OUTPUT_LENGTH
    return plain and small and not config.sample and not config.coverage_beta


def run_search(
    decoder: DecoderStack,
    tables: OutputTables,
    sentences: EncodedBatch | SourceTokens,
    constraints: Constraints,
    request: SearchRequest,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence, best first."""
    config, symbols, limits = request.config, request.symbols, constraints.limits.contiguous()
    longest = int(limits.max())
    suppressed = limits.new_tensor([*suppressed_tokens(config.min_length, config, symbols), symbols.end])
    penalties = length_penalty(
        torch.arange(1, longest + 1, device=limits.device), config.length_penalty, config.length_alpha
    )
    positions = tables.positions(longest)  # (longest, D)
    screen: QuantizedMatrix | None = None  # set if only the largest logit is needed
    if config.beam == 1 and not request.scores:
        screen = tables.int8 or tables.screen
    buffers = Buffers.empty(config.nbest, limits)
    token_tables = TokenTables(
        vocabulary=len(tables.output),
        scale=tables.scale,
        embedding=address(tables.embedding),
        positions=address(positions),
        output=address(tables.output),
        int8_output=None if tables.int8 is None else ctypes.pointer(tables.int8.structure),
        int8_argmax=None if screen is None else ctypes.pointer(screen.structure),
    )
    search_limits = SearchLimits(
        min_length=config.min_length,
        begin=symbols.begin,
        end=symbols.end,
        suppressed_count=len(suppressed),
        suppressed=address(suppressed),
        limits=address(limits),
        penalties=address(penalties),
    )
    source, memory = search_input(sentences)
    stop = None if request.stop is None else ctypes.byref(request.stop.value)
    try:
        kernel(
            *("search", ctypes.byref(decoder), ctypes.byref(token_tables), source, memory, ctypes.byref(search_limits)),
            *(len(limits), config.beam),
            *(HypothesisBuffers(config.nbest, *(address(column) for column in buffers)), stop),
        )
    except RuntimeError:
        check_stop(request.stop)
        raise
    return hypotheses(buffers, limits, scores=screen is None)


def search_input(sentences: EncodedBatch | SourceTokens) -> tuple[Any, PackedMemory]:
    """Return the sources to encode, or the memory, as kernel arguments."""
    if isinstance(sentences, EncodedBatch):
        memory = PackedMemory(
            kv=(ctypes.c_void_p * len(sentences.kv))(*(address(layer) for layer in sentences.kv)),
            rows=len(sentences.kv[0]),
            first=address(sentences.first),
            counts=address(sentences.counts),
            sentences=len(sentences.first),
        )
        return None, memory
    batch = SourceBatch(
        encoder=ctypes.pointer(sentences.encoder),
        scale=sentences.scale,
        embedding=address(sentences.embedding),
        positions=address(sentences.positions),
        cu_seqlens=address(sentences.cu_seqlens),
        tokens=address(sentences.tokens),
        position_ids=address(sentences.position_ids),
        vocabulary=len(sentences.embedding),
        max_positions=len(sentences.positions),
    )
    return ctypes.byref(batch), PackedMemory()


def hypotheses(buffers: Buffers, limits: Tensor, *, scores: bool) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence; outputs of probability 0 are left out."""
    found = []
    tokens = buffers.tokens.tolist()
    token_log_probabilities = buffers.token_log_probabilities.tolist() if scores else []
    columns = buffers.lengths, buffers.finished, buffers.log_probabilities, buffers.scores
    rows = (buffers.starts, limits, buffers.counts, *columns)
    for start, limit, count, *own in zip(*(row.tolist() for row in rows), strict=True):
        outputs = []
        for rank, (length, finished, total, score) in enumerate(zip(*(row[:count] for row in own), strict=True)):
            if total == -math.inf:
                continue
            first = start + rank * limit
            written = tuple(tokens[first : first + length - finished])
            each = tuple(token_log_probabilities[first : first + length])
            total, score = (total, score) if scores else (math.nan, math.nan)
            outputs.append(Hypothesis(written, total, score, each, finished=bool(finished)))
        found.append(outputs or [IMPOSSIBLE])
    return found
