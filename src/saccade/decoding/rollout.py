"""The decoding loop of greedy search and sampling: one hypothesis for each row, one token per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import (
    Constraints,
    allowed_tokens,
    constrain_,
    mask_disallowed_,
    suppressed_tokens,
)
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.penalties import length_penalty
from saccade.decoding.screening import Int8Argmax, quantize_for_screening
from saccade.decoding.stop_flag import StopFlag, check_stop
from saccade.interface import Decoder, Memory, select
from saccade.ops.top_k import top_k
from saccade.symbols import Symbols

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""A function from log-probabilities (N, V), batch indices of the rows (N,) and the position to next tokens (N,)."""


class LiveHypotheses(NamedTuple):
    """The rows that are not finished; batch-first, so that `select` drops finished rows."""

    row: Tensor  # (N,) index in the batch
    token: Tensor  # (N,) last token
    constraints: Constraints
    state: Any
    memory: Memory


class Outputs(NamedTuple):
    """The tokens of every row of the batch so far."""

    tokens: Tensor  # (B, T)
    log_probabilities: Tensor  # (B, T)
    length: Tensor  # (B,) number of tokens so far


def roll_out(
    model: Decoder,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    choose: Choose | None = None,
    *,
    scores: bool = True,
    stop: StopFlag | None = None,
) -> list[Hypothesis]:
    """Return one hypothesis for each row of the memory; `choose` picks the tokens, by default the most probable ones.

    Without `scores` the log-probabilities may be left out, which saves the softmax and most of the output layer.
    """
    live = initial_rows(model, memory, constraints, symbols)
    outputs = empty_outputs(constraints)
    screened = choose is None and not scores and constraints.only_lengths_differ
    screen: Int8Argmax | None = None
    for position in range(outputs.tokens.size(1)):
        check_stop(stop)
        output, state, _ = model.step(live.token, live.state, live.memory)
        projection = model.output_projection(output) if screened else None
        if position == 0:
            screen = quantize_for_screening(projection)
            screened = screen is not None
        if screen is None or projection is None:
            token, log_probability = next_tokens(model.logits(output), live, position, config, symbols, choose)
        else:
            log_probability, token = screen.best(projection.inputs, suppressed_tokens(position, config, symbols))
        append(outputs, live.row, position, token, log_probability)
        unfinished = (token != symbols.end) & (live.constraints.limits > position + 1) & log_probability.isfinite()
        kept = unfinished.nonzero().squeeze(1)
        if len(kept) == 0:
            break
        live = live._replace(token=token, state=state)
        if len(kept) < len(unfinished):
            live = select(live, kept)
    results = hypotheses(outputs, config, symbols)
    return results if screen is None else [without_scores(hypothesis) for hypothesis in results]


def next_tokens(
    logits: Tensor, live: LiveHypotheses, position: int, config: DecodingConfig, symbols: Symbols, choose: Choose | None
) -> tuple[Tensor, Tensor]:
    """Return the next tokens (N,) and their log-probabilities (N,), from logits (N, V)."""
    prefixes, allowed = live.constraints.prefixes, live.constraints.allowed
    if choose is None and position >= prefixes.size(1):
        values, tokens = top_k(logits, 1, suppressed_tokens(position, config, symbols), allowed_tokens(allowed))
        return tokens.squeeze(1), values.squeeze(1)
    log_probabilities = mask_disallowed_(logits, allowed).log_softmax(dim=-1, dtype=torch.float32)
    log_probabilities = constrain_(log_probabilities, position, prefixes, config, symbols)
    token = choose(log_probabilities, live.row, position) if choose else log_probabilities.max(dim=1).indices
    return token, log_probabilities.gather(1, token[:, None]).squeeze(1)


def initial_rows(model: Decoder, memory: Memory, constraints: Constraints, symbols: Symbols) -> LiveHypotheses:
    """Return all rows of the batch before the first token."""
    row = torch.arange(memory.mask.size(0), device=memory.mask.device)
    return LiveHypotheses(row, torch.full_like(row, symbols.begin), constraints, model.start(memory), memory)


def empty_outputs(constraints: Constraints) -> Outputs:
    """Return buffers for the longest output of the batch."""
    limits = constraints.limits
    tokens = limits.new_zeros(len(limits), int(limits.max()))
    return Outputs(tokens, torch.zeros_like(tokens, dtype=torch.float32), torch.zeros_like(limits))


def append(outputs: Outputs, row: Tensor, position: int, token: Tensor, log_probability: Tensor) -> None:
    """Append one token (N,) to each of the given rows (N,)."""
    outputs.tokens[row, position] = token
    outputs.log_probabilities[row, position] = log_probability
    outputs.length[row] = position + 1


def hypotheses(outputs: Outputs, config: DecodingConfig, symbols: Symbols) -> list[Hypothesis]:
    """Return the outputs as hypotheses."""
    log_probability = outputs.log_probabilities.sum(dim=1)  # (B,)
    score = log_probability / length_penalty(outputs.length, config.length_penalty, config.length_alpha)  # (B,)
    columns = (*outputs, log_probability, score)
    return [
        hypothesis(tokens[:length], log_probabilities[:length], total, score, symbols)
        for tokens, log_probabilities, length, total, score in zip(*(c.tolist() for c in columns), strict=True)
    ]


def hypothesis(
    tokens: list[int], log_probabilities: list[float], log_probability: float, score: float, symbols: Symbols
) -> Hypothesis:
    """Return the output of one row as a hypothesis."""
    if not log_probability > -math.inf:  # probability 0, or NaN
        return IMPOSSIBLE
    finished = tokens[-1] == symbols.end
    return Hypothesis(
        tokens=tuple(tokens[:-1] if finished else tokens),
        log_probability=log_probability,
        score=score,
        token_log_probabilities=tuple(log_probabilities),
        finished=finished,
    )


def without_scores(hypothesis: Hypothesis) -> Hypothesis:
    """Return a hypothesis without log-probabilities and score."""
    if hypothesis is IMPOSSIBLE:
        return hypothesis
    return replace(hypothesis, log_probability=math.nan, score=math.nan, token_log_probabilities=())
