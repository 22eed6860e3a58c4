"""Beam search: the K most probable hypotheses of each sentence.

Each step takes the 2K best continuations of a sentence. Those that end are scored, and kept if they are among its n
best; the K best others stay alive, ranked by log-probability: they have one length, and their coverage is incomplete.
Live hypotheses that can no longer beat the finished ones are pruned, and a sentence leaves the batch when it has no
live hypothesis, or at its maximum length. Pruning never changes the result: the continuations that would replace a
pruned hypothesis are less probable, so they could not win either.

The model's outputs stay on its device; the few candidates of each row are processed on the CPU in numpy: for so few
numbers the overhead of a torch call exceeds its run time, and every step would wait for the GPU several times.

Shapes: B sentences still searched, W ≤ K live hypotheses of each, N = B·W rows of the model, C ≤ 2K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import (
    Constraints,
    allowed_tokens,
    constrain_,
    mask_disallowed_,
    suppressed_tokens,
)
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis, ranked
from saccade.decoding.penalties import coverage_penalty, length_penalty
from saccade.decoding.stop_flag import StopFlag, check_stop
from saccade.errors import SaccadeError
from saccade.interface import Attention, Decoder, Memory, Step, reorder, select
from saccade.ops.top_k import largest, top_k
from saccade.symbols import Symbols

LOGIT_ROWS = 512  # rows that pass the output layer at once on the CPU: few enough for its cache

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

NEGATIVE_INFINITY = np.float32(-math.inf)


class LiveHypotheses(NamedTuple):
    """The live hypotheses: N rows, grouped by sentence."""

    tokens: Integers  # (N, t) begin symbol first
    token_log_probabilities: Floats  # (N, t) 0 for the begin symbol
    log_probability: Floats  # (N,) -inf for a row that only pads its sentence to W
    coverage: Tensor | None  # (N, S) sum of attention to each source position; None without a coverage penalty
    state: Any
    memory: Memory  # B rows


class Sentences(NamedTuple):
    """The sentences still searched."""

    row: Integers  # (B,) index in the batch
    limits: Integers  # (B,) maximum length, with the end symbol
    best: Floats  # (B, nbest) scores of the best finished hypotheses, descending, padded with -inf
    constraints: Constraints  # of these sentences, on the device of the model

    def take(self, kept: Integers) -> Sentences:
        """Return the sentences at the indices `kept` (B',)."""
        return Sentences(self.row[kept], self.limits[kept], self.best[kept], self.constraints.take(kept))


class Candidates(NamedTuple):
    """Continuations of live hypotheses, most probable first; those with -inf are excluded."""

    parent: Integers  # (B, C) row of the live hypothesis that is continued, 0 … N-1
    token: Integers  # (B, C)
    token_log_probability: Floats  # (B, C)
    log_probability: Floats  # (B, C) of the hypothesis

    def take(self, rows: Integers | slice, columns: slice) -> Candidates:
        """Return the candidates in some rows and columns."""
        return Candidates(
            self.parent[rows, columns],
            self.token[rows, columns],
            self.token_log_probability[rows, columns],
            self.log_probability[rows, columns],
        )


def beam_search(
    model: Decoder,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    *,
    early_stop: bool = True,
    stop: StopFlag | None = None,
) -> list[list[Hypothesis]]:
    """Return the `nbest` hypotheses of each row of the memory, best first; fewer if no more are possible.

    `early_stop` prunes, which never changes the result; without it every sentence runs to its maximum length. A beam of
    1 is not greedy search: it continues after the first end symbol as long as a longer hypothesis could score better.
    """
    live = initial_beam(model, memory, config, symbols)
    sentences = initial_sentences(constraints, config)
    longest = int(sentences.limits.max())
    lengths = torch.arange(1, longest + 1, device="cpu")
    penalties = length_penalty(lengths, config.length_penalty, config.length_alpha).numpy()  # (longest,)
    outputs: list[list[Hypothesis]] = [[] for _ in sentences.row]
    for length in range(1, longest + 1):
        check_stop(stop)
        newest = torch.from_numpy(live.tokens[:, -1].copy()).to(memory.mask.device)
        step = model.step(newest, live.state, live.memory, record=live.coverage is not None)
        live = update(live, step)
        candidates = expand(live, model, step.output, sentences.constraints, config, symbols)  # (B, C)
        finished = finished_candidates(candidates, symbols)
        continuing = continuing_candidates(candidates, config, symbols)

        scores = scores_of(finished, live, penalties[length - 1], config)  # (B, C)
        sentences = sentences._replace(
            best=sort_descending(np.concatenate([sentences.best, scores], 1))[:, : config.nbest]
        )
        collect(outputs, finished, scores, scores >= sentences.best[:, -1:], live, sentences, finished=True)

        at_limit = sentences.limits == length  # (B,)
        if at_limit.any():
            scores = scores_of(continuing, live, penalties[length - 1], config)  # (B, K)
            collect(outputs, continuing, scores, at_limit[:, None], live, sentences, finished=False)

        continuing = prune(continuing, sentences, penalties) if early_stop else continuing
        is_alive = continuing.log_probability[:, 0] > -math.inf  # (B,) the best candidate comes first
        kept = np.flatnonzero(is_alive & ~at_limit)
        if len(kept) == 0:
            break
        live = advance(live, continuing, kept)
        sentences = sentences if len(kept) == len(is_alive) else sentences.take(kept)
    return [ranked(hypotheses)[: config.nbest] or [IMPOSSIBLE] for hypotheses in outputs]


def initial_beam(model: Decoder, memory: Memory, config: DecodingConfig, symbols: Symbols) -> LiveHypotheses:
    """Return one empty hypothesis for each sentence; the first step widens the beams."""
    tokens = np.full((memory.mask.size(0), 1), symbols.begin, dtype=np.int64)
    zeros = np.zeros(tokens.shape, dtype=np.float32)
    coverage = torch.zeros_like(memory.mask, dtype=torch.float32) if config.coverage_beta else None
    return LiveHypotheses(tokens, zeros, zeros[:, 0], coverage, model.start(memory), memory)


def initial_sentences(constraints: Constraints, config: DecodingConfig) -> Sentences:
    """Return every sentence of the batch, without finished hypotheses."""
    limits = constraints.limits.cpu().numpy()
    best = np.full((len(limits), config.nbest), -math.inf, dtype=np.float32)
    return Sentences(np.arange(len(limits)), limits, best, constraints)


def update(live: LiveHypotheses, step: Step) -> LiveHypotheses:
    """Take the new state of the model, and add its attention weights to the coverage."""
    live = live._replace(state=step.state)
    if live.coverage is None:
        return live
    return live._replace(coverage=live.coverage + cross_attention(step.attention))


def cross_attention(attention: Sequence[Attention]) -> Tensor:
    """Return the cross-attention of the last layer in one step, averaged over its heads: (N, S)."""
    layers = [record for record in attention if record.kind == "cross"]
    if not layers:
        raise SaccadeError(
            "the coverage penalty needs cross-attention, and this model has none",
            hint="set decoding.coverage-beta to 0",
        )
    last = max(layers, key=lambda record: record.layer)
    return last.weights.float().mean(dim=1).squeeze(1)


def expand(
    live: LiveHypotheses,
    model: Decoder,
    outputs: Tensor,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
) -> Candidates:
    """Return the 2K best continuations of each sentence, from the model's outputs (N, D)."""
    sentences, rows = len(constraints.limits), len(outputs)
    alive = np.flatnonzero(live.log_probability > -math.inf)  # (A,) padding rows need no logits
    if len(alive) < rows:
        outputs = outputs.index_select(0, torch.from_numpy(alive).to(outputs.device))  # (A, D)
    chunk = LOGIT_ROWS if outputs.device.type == "cpu" else rows
    chunks = []
    for first in range(0, len(alive), chunk):
        sentence = alive[first : first + chunk] // (rows // sentences)
        own = constraints if constraints.only_lengths_differ else constraints.take(sentence)
        logits = model.logits(outputs[first : first + chunk])
        chunks.append(continuations(logits, live.tokens.shape[1] - 1, own, config, symbols))
    local, tokens = (
        np.concatenate([tensor.cpu().numpy() for tensor in column]) for column in zip(*chunks, strict=True)
    )
    if len(alive) < rows:
        local, tokens = scatter_rows(local, alive, rows, -math.inf), scatter_rows(tokens, alive, rows, 0)  # (N, C)
    width = local.shape[1]
    total = (live.log_probability[:, None] + local).reshape(sentences, -1)  # (B, W·C)
    best = (-total).argsort(axis=1, kind="stable")[:, : 2 * config.beam]  # (B, C)
    return Candidates(
        parent=best // width + np.arange(0, rows, rows // sentences)[:, None],
        token=take_columns(tokens.reshape(sentences, -1), best),
        token_log_probability=take_columns(local.reshape(sentences, -1), best),
        log_probability=take_columns(total, best),
    )


def continuations(
    logits: Tensor, position: int, constraints: Constraints, config: DecodingConfig, symbols: Symbols
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and tokens (A, C) of the best continuations of each row, from its logits (A, V).

    All 2K of a sentence may come from one row: 2K of each row suffice.
    """
    count = min(2 * config.beam, logits.size(1))
    prefixes = constraints.prefixes
    if position >= prefixes.size(1):
        suppressed = suppressed_tokens(position, config, symbols)
        return top_k(logits, count, suppressed, allowed_tokens(constraints.allowed))
    log_probabilities = mask_disallowed_(logits, constraints.allowed).log_softmax(dim=-1, dtype=torch.float32)
    return largest(constrain_(log_probabilities, position, prefixes, config, symbols), count)


def finished_candidates(candidates: Candidates, symbols: Symbols) -> Candidates:
    """Return the candidates with the end symbol; the others get -inf."""
    return candidates._replace(
        log_probability=np.where(candidates.token == symbols.end, candidates.log_probability, NEGATIVE_INFINITY)
    )


def continuing_candidates(candidates: Candidates, config: DecodingConfig, symbols: Symbols) -> Candidates:
    """Return the K best candidates (B, K) without the end symbol."""
    log_probability = np.where(candidates.token == symbols.end, NEGATIVE_INFINITY, candidates.log_probability)
    order = (-log_probability).argsort(axis=1, kind="stable")[:, : config.beam]
    continuing = candidates._replace(log_probability=log_probability)
    return Candidates(*(take_columns(column, order) for column in continuing))


def scores_of(candidates: Candidates, live: LiveHypotheses, penalty: np.float32, config: DecodingConfig) -> Floats:
    """Return scores (B, C) that rank hypotheses of any length: Wu et al. 2016, section 7, equation 14."""
    scores = candidates.log_probability / penalty
    if live.coverage is None:
        return scores
    mask = live.memory.mask.repeat_interleave(len(live.tokens) // len(live.memory.mask), dim=0)  # (N, S)
    penalties: Floats = coverage_penalty(live.coverage, mask, config.coverage_beta).cpu().numpy()  # (N,)
    return scores + penalties[candidates.parent]


def prune(continuing: Candidates, sentences: Sentences, penalties: Floats) -> Candidates:
    """Set the candidates (B, K) to -inf that can no longer enter the n best of their sentence.

    A log-probability can only fall and a coverage penalty only lowers a score, so the score of a live hypothesis is
    bounded by its present log-probability with the length penalty of the maximum length, the most lenient one.
    """
    most_lenient = penalties[sentences.limits - 1]  # (B,)
    hopeless = sentences.best[:, -1:] >= continuing.log_probability / most_lenient[:, None]  # (B, K)
    return continuing._replace(log_probability=np.where(hopeless, NEGATIVE_INFINITY, continuing.log_probability))


def collect(
    outputs: list[list[Hypothesis]],
    candidates: Candidates,
    scores: Floats,
    accepted: NDArray[np.bool_],
    live: LiveHypotheses,
    sentences: Sentences,
    *,
    finished: bool,
) -> None:
    """Append the accepted candidates (B, C) with a probability above 0 to the outputs of their sentences."""
    accepted = accepted & (candidates.log_probability > -math.inf)
    for sentence, column in zip(*(indices.tolist() for indices in accepted.nonzero()), strict=True):
        parent, token, token_log_probability, log_probability = (field[sentence, column].item() for field in candidates)
        tokens = (*live.tokens[parent, 1:].tolist(), token)
        outputs[sentences.row[sentence]].append(
            Hypothesis(
                tokens=tokens[:-1] if finished else tokens,
                log_probability=log_probability,
                score=scores[sentence, column].item(),
                token_log_probabilities=(*live.token_log_probabilities[parent, 1:].tolist(), token_log_probability),
                finished=finished,
            )
        )


def advance(live: LiveHypotheses, continuing: Candidates, kept: Integers) -> LiveHypotheses:
    """Return the live hypotheses of the next step: the candidates of the kept sentences (B',)."""
    rows, sentences = len(live.tokens), len(continuing.parent)
    all_kept = len(kept) == sentences
    # Forced prefixes and pruning leave fewer than K: the beam is as wide as the widest sentence needs.
    width = max(1, int((continuing.log_probability[kept] > -math.inf).sum(axis=1).max()))
    continuing = continuing.take(slice(None) if all_kept else kept, slice(width))  # (B', W')
    parent = continuing.parent.ravel()  # (N',)

    device = live.memory.mask.device
    hypotheses = torch.from_numpy(parent).to(device)
    memory_rows = None if all_kept else torch.from_numpy(kept).to(device)
    is_identity = len(parent) == rows and np.array_equal(parent, np.arange(rows))
    return LiveHypotheses(
        tokens=np.concatenate([live.tokens[parent], continuing.token.reshape(-1, 1)], 1),
        token_log_probabilities=np.concatenate(
            [live.token_log_probabilities[parent], continuing.token_log_probability.reshape(-1, 1)], 1
        ),
        log_probability=continuing.log_probability.ravel(),
        coverage=select(live.coverage, hypotheses),
        state=live.state if is_identity else reorder(live.state, hypotheses, memory_rows),
        # The hypotheses of a sentence share its memory, so reordering them does not change it.
        memory=live.memory if memory_rows is None else select(live.memory, memory_rows),
    )


def take_columns(values: NDArray[Any], columns: Integers) -> NDArray[Any]:
    """Return the values (B, M) at the columns (B, C) of each row."""
    return np.take_along_axis(values, columns, axis=1)


def sort_descending(values: Floats) -> Floats:
    """Return the values of each row, largest first."""
    return np.sort(values, axis=1)[:, ::-1]


def scatter_rows(values: NDArray[Any], rows: Integers, count: int, padding: float) -> NDArray[Any]:
    """Return the values (A, C) at the given rows of (count, C), padding in the other rows."""
    padded = np.full((count, values.shape[1]), padding, dtype=values.dtype)
    padded[rows] = values
    return padded
