"""One hypothesis for each row, token after token; greedy search and sampling differ only in how they choose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints, allow, allowed_tokens, keep_to_, never_written
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.penalties import length_penalty
from saccade.decoding.screening import Screen, screen_of
from saccade.interface import Decodes, Memory, select
from saccade.ops.top_k import top_k
from saccade.symbols import Symbols

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""From log-probabilities (N, V), the rows' numbers in the batch (N,) and the position to the next tokens (N,)."""


class Running(NamedTuple):
    """The rows that still write; batch-first throughout, so that `select` drops the others."""

    row: Tensor  # (N,) their numbers in the batch
    token: Tensor  # (N,) what they wrote last
    constraints: Constraints
    state: Any
    memory: Memory


class Written(NamedTuple):
    """What every row of the batch has written so far."""

    tokens: Tensor  # (B, T)
    log_probabilities: Tensor  # (B, T)
    length: Tensor  # (B,) how many of the T are written


def roll_out(
    model: Decodes,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    choose: Choose | None = None,
    *,
    scores: bool = True,
) -> list[Hypothesis]:
    """One hypothesis for each row of the memory, in its order; by default of the most probable tokens.

    Without `scores` there may be no log-probabilities, which saves the softmax, and with it most of the output layer.
    """
    running = begin(model, memory, constraints, symbols)
    written = blank(constraints)
    screened = choose is None and not scores and constraints.on_length_only
    screen: Screen | None = None
    for position in range(written.tokens.size(1)):
        output, state, _ = model.step(running.token, running.state, running.memory)
        product = model.output_product(output) if screened else None
        if position == 0:
            screen = screen_of(product)
            screened = screen is not None
        if screen is None or product is None:
            token, log_probability = next_tokens(model.logits(output), running, position, config, symbols, choose)
        else:
            log_probability, token = screen.best(product.rows, never_written(position, config, symbols))
        write(written, running.row, position, token, log_probability)
        stays = (token != symbols.end) & (running.constraints.limits > position + 1) & log_probability.isfinite()
        kept = stays.nonzero().squeeze(1)
        if len(kept) == 0:
            break
        running = running._replace(token=token, state=state)
        if len(kept) < len(stays):
            running = select(running, kept)
    found = hypotheses(written, config, symbols)
    return found if screen is None else [without_scores(hypothesis) for hypothesis in found]


def next_tokens(
    logits: Tensor, running: Running, position: int, config: DecodingConfig, symbols: Symbols, choose: Choose | None
) -> tuple[Tensor, Tensor]:
    """What each row (N,) writes, and the log-probability of it, from its logits (N, V)."""
    prefixes, allowed = running.constraints.prefixes, running.constraints.allowed
    if choose is None and position >= prefixes.size(1):
        values, tokens = top_k(logits, 1, never_written(position, config, symbols), allowed_tokens(allowed))
        return tokens.squeeze(1), values.squeeze(1)
    log_probabilities = keep_to_(logits, allowed).log_softmax(dim=-1, dtype=torch.float32)
    log_probabilities = allow(log_probabilities, position, prefixes, config, symbols)
    token = choose(log_probabilities, running.row, position) if choose else log_probabilities.max(dim=1).indices
    return token, log_probabilities.gather(1, token[:, None]).squeeze(1)


def begin(model: Decodes, memory: Memory, constraints: Constraints, symbols: Symbols) -> Running:
    """Every row before its first token."""
    row = torch.arange(memory.mask.size(0), device=memory.mask.device)
    return Running(row, torch.full_like(row, symbols.begin), constraints, model.start(memory), memory)


def blank(constraints: Constraints) -> Written:
    """Room for the longest output of the batch."""
    limits = constraints.limits
    tokens = limits.new_zeros(len(limits), int(limits.max()))
    return Written(tokens, torch.zeros_like(tokens, dtype=torch.float32), torch.zeros_like(limits))


def write(written: Written, row: Tensor, position: int, token: Tensor, log_probability: Tensor) -> None:
    """Note one token (N,) for each of the given rows (N,)."""
    written.tokens[row, position] = token
    written.log_probabilities[row, position] = log_probability
    written.length[row] = position + 1


def hypotheses(written: Written, config: DecodingConfig, symbols: Symbols) -> list[Hypothesis]:
    """What was written, as hypotheses."""
    log_probability = written.log_probabilities.sum(dim=1)  # (B,)
    score = log_probability / length_penalty(written.length, config.length_penalty, config.length_alpha)  # (B,)
    columns = (*written, log_probability, score)
    return [
        hypothesis(tokens[:length], log_probabilities[:length], total, score, symbols)
        for tokens, log_probabilities, length, total, score in zip(*(c.tolist() for c in columns), strict=True)
    ]


def hypothesis(
    tokens: list[int], log_probabilities: list[float], log_probability: float, score: float, symbols: Symbols
) -> Hypothesis:
    """One row's symbols as a hypothesis."""
    if not log_probability > -math.inf:  # what is no number is none either
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
    """The tokens of a hypothesis alone."""
    if hypothesis is IMPOSSIBLE:
        return hypothesis
    return replace(hypothesis, log_probability=math.nan, score=math.nan, token_log_probabilities=())
