"""Beam search: the K most probable hypotheses of each sentence live side by side.

Each step takes the 2K best continuations of a sentence. Those that end are scored, and kept if they are among its n
best; the K best others live on, ranked by log-probability: they have one length, and their coverage is not complete.
What could no longer beat the hypotheses found is given up, and a sentence leaves the batch when nothing of it lives, or
at its maximum length. Giving up never changes the result: whatever would have taken the place of a hypothesis that was
given up is less probable than that, and so could not win either.

Shapes: B sentences still searched, W ≤ K live hypotheses of each, N = B·W rows of the model, C ≤ 2K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints, allow, never_written
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis, ranked
from saccade.decoding.largest import largest, most_probable
from saccade.decoding.penalties import coverage_penalty, length_penalty
from saccade.errors import SaccadeError
from saccade.interface import Attention, Decodes, Memory, Step, reorder, select
from saccade.symbols import Symbols

ROWS = 512  # whose logits are made at once on the CPU: few enough for its cache


class Live(NamedTuple):
    """The live hypotheses: N rows, those of one sentence together."""

    tokens: Tensor  # (N, t) begin first
    token_log_probabilities: Tensor  # (N, t) 0 for begin
    log_probability: Tensor  # (N,) -inf for a row that only fills up its sentence's W
    coverage: Tensor | None  # (N, S) the attention that each source position has received; None: nobody asks
    state: Any
    memory: Memory  # B rows


class Sentences(NamedTuple):
    """The sentences still searched; batch-first, so that `select` drops those that are done."""

    row: Tensor  # (B,) their numbers in the batch
    constraints: Constraints
    best: Tensor  # (B, nbest) scores of the best finished hypotheses, falling, -inf where there is none yet


class Candidates(NamedTuple):
    """Continuations of live hypotheses, most probable first; those at -inf are none."""

    parent: Tensor  # (B, C) the live row that is continued, 0 … N-1
    token: Tensor  # (B, C)
    token_log_probability: Tensor  # (B, C)
    log_probability: Tensor  # (B, C) of the whole hypothesis


def beam_search(
    model: Decodes,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    *,
    early_stop: bool = True,
) -> list[list[Hypothesis]]:
    """For each row of the memory its `nbest` hypotheses, best first; fewer if no more are possible.

    `early_stop` never changes the result; without it every sentence runs to its maximum length. A beam of 1 is not
    greedy search: it goes on after its first end for as long as a longer hypothesis could score better.
    """
    live = begin(model, memory, config, symbols)
    sentences = all_sentences(constraints, config)
    lengths = torch.arange(1, int(constraints.limits.max()) + 1, device=constraints.limits.device)
    penalties = length_penalty(lengths, config.length_penalty, config.length_alpha)  # (longest,), of length 1 first
    found: list[list[Hypothesis]] = [[] for _ in sentences.row]
    for length in range(1, int(constraints.limits.max()) + 1):
        step = model.step(live.tokens[:, -1], live.state, live.memory, record=live.coverage is not None)
        live = look(live, step)
        candidates = expand(live, model, step.output, sentences.constraints, config, symbols)  # (B, C)
        ended = ending(candidates, symbols)
        going = continuing(candidates, config, symbols)

        scores = penalised(ended, live, penalties[length - 1], config)  # (B, C)
        sentences = sentences._replace(best=torch.cat([sentences.best, scores], dim=1).topk(config.nbest).values)
        collect(found, ended, scores, scores >= sentences.best[:, -1:], live, sentences, finished=True)

        at_limit = sentences.constraints.limits == length  # (B,)
        if at_limit.any():
            scores = penalised(going, live, penalties[length - 1], config)  # (B, K)
            collect(found, going, scores, at_limit[:, None], live, sentences, finished=False)

        going = give_up(going, sentences, penalties) if early_stop else going
        lives = going.log_probability[:, 0] > -math.inf  # (B,) the best of them comes first
        kept = (lives & ~at_limit).nonzero().squeeze(1)
        if len(kept) == 0:
            break
        live = advance(live, going, kept)
        sentences = select(sentences, kept)
    return [ranked(hypotheses)[: config.nbest] or [IMPOSSIBLE] for hypotheses in found]


def begin(model: Decodes, memory: Memory, config: DecodingConfig, symbols: Symbols) -> Live:
    """One empty hypothesis for each sentence; the beams widen with the first step."""
    tokens = torch.full((memory.mask.size(0), 1), symbols.begin, device=memory.mask.device)
    zeros = torch.zeros_like(tokens, dtype=torch.float32)
    coverage = torch.zeros_like(memory.mask, dtype=torch.float32) if config.coverage_beta else None
    return Live(tokens, zeros, zeros.squeeze(1), coverage, model.start(memory), memory)


def all_sentences(constraints: Constraints, config: DecodingConfig) -> Sentences:
    """Every sentence of the batch, with nothing found yet."""
    count, device = len(constraints.limits), constraints.limits.device
    best = torch.full((count, config.nbest), -math.inf, device=device)
    return Sentences(torch.arange(count, device=device), constraints, best)


def look(live: Live, step: Step) -> Live:
    """Take over the model's new state, and add up where it looked."""
    live = live._replace(state=step.state)
    if live.coverage is None:
        return live
    return live._replace(coverage=live.coverage + cross_attention(step.attention))


def cross_attention(attention: Sequence[Attention]) -> Tensor:
    """Where the last layer that attends to the memory looked in one step, as the mean of its heads: (N, S)."""
    layers = [record for record in attention if record.kind == "cross"]
    if not layers:
        raise SaccadeError(
            "a coverage penalty needs attention to the input, and this model has none",
            do="set decoding.coverage-beta to 0",
        )
    last = max(layers, key=lambda record: record.layer)
    return last.weights.float().mean(dim=1).squeeze(1)


def expand(
    live: Live, model: Decodes, outputs: Tensor, constraints: Constraints, config: DecodingConfig, symbols: Symbols
) -> Candidates:
    """The 2K best continuations of each sentence, from the model's outputs (N, D)."""
    sentences, rows = len(constraints.limits), len(outputs)
    position = live.tokens.size(1) - 1
    alive = (live.log_probability > -math.inf).nonzero().squeeze(1)  # (A,) rows that only fill up need no logits
    prefixes = constraints.prefixes.index_select(0, alive // (rows // sentences))  # (A, P)
    outputs = outputs if len(alive) == rows else outputs.index_select(0, alive)  # (A, D)
    together = ROWS if outputs.device.type == "cpu" else rows
    parts = [
        continuations(model.logits(part), position, own, config, symbols)
        for part, own in zip(outputs.split(together), prefixes.split(together), strict=True)  # type: ignore[no-untyped-call]
    ]
    local, tokens = (torch.cat(columns) for columns in zip(*parts, strict=True))  # (A, C)
    if len(alive) < rows:
        local = local.new_full((rows, local.size(1)), -math.inf).index_copy_(0, alive, local)  # (N, C)
        tokens = tokens.new_zeros(local.shape).index_copy_(0, alive, tokens)
    total = (live.log_probability[:, None] + local).view(sentences, -1)  # (B, W·C)
    best = total.topk(min(2 * config.beam, total.size(1)))  # (B, C)
    parent = torch.arange(rows, device=local.device)[:, None].expand_as(local)  # (N, C)
    return Candidates(
        parent=parent.reshape(sentences, -1).gather(1, best.indices),
        token=tokens.view(sentences, -1).gather(1, best.indices),
        token_log_probability=local.view(sentences, -1).gather(1, best.indices),
        log_probability=best.values,
    )


def continuations(
    logits: Tensor, position: int, prefixes: Tensor, config: DecodingConfig, symbols: Symbols
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and tokens (A, C) of the best continuations of each row, from its logits (A, V).

    All 2K of a sentence may come from one row, and no more than that can: 2K of each row are enough.
    """
    count = min(2 * config.beam, logits.size(1))
    if position >= prefixes.size(1):
        return most_probable(logits, count, never_written(position, config, symbols))
    log_probabilities = logits.log_softmax(dim=-1, dtype=torch.float32)
    return largest(allow(log_probabilities, position, prefixes, config, symbols), count)


def ending(candidates: Candidates, symbols: Symbols) -> Candidates:
    """The candidates that end, the others at -inf."""
    others = candidates.token != symbols.end
    return candidates._replace(log_probability=candidates.log_probability.masked_fill(others, -math.inf))


def continuing(candidates: Candidates, config: DecodingConfig, symbols: Symbols) -> Candidates:
    """The K best candidates (B, K) that do not end."""
    log_probability = candidates.log_probability.masked_fill(candidates.token == symbols.end, -math.inf)
    order = log_probability.argsort(dim=1, descending=True, stable=True)[:, : config.beam]
    going = candidates._replace(log_probability=log_probability)
    return Candidates(*(column.gather(1, order) for column in going))


def penalised(candidates: Candidates, live: Live, penalty: Tensor, config: DecodingConfig) -> Tensor:
    """The scores (B, C) that rank hypotheses of any length: Wu et al. 2016, section 7, equation 14."""
    scores = candidates.log_probability / penalty
    if live.coverage is None:
        return scores
    mask = live.memory.mask.repeat_interleave(len(live.tokens) // len(live.memory.mask), dim=0)  # (N, S)
    return scores + coverage_penalty(live.coverage, mask, config.coverage_beta)[candidates.parent]


def give_up(going: Candidates, sentences: Sentences, penalties: Tensor) -> Candidates:
    """The candidates (B, K) with those at -inf that cannot enter a sentence's n best any more.

    A log-probability can only fall and a coverage penalty only lower a score, so a live hypothesis cannot do better
    than to reach the maximum length, where the length penalty is most lenient, and lose nothing on the way.
    """
    most_lenient = penalties[sentences.constraints.limits - 1]  # (B,)
    hopeless = sentences.best[:, -1:] >= going.log_probability / most_lenient[:, None]  # (B, K)
    return going._replace(log_probability=going.log_probability.masked_fill(hopeless, -math.inf))


def collect(
    found: list[list[Hypothesis]],
    candidates: Candidates,
    scores: Tensor,
    accepted: Tensor,
    live: Live,
    sentences: Sentences,
    *,
    finished: bool,
) -> None:
    """Add the accepted candidates (B, C), as far as they are possible at all, to what their sentences have found."""
    accepted = accepted & (candidates.log_probability > -math.inf)
    sentence = accepted.nonzero()[:, 0]  # (M,)
    if len(sentence) == 0:
        return
    parent = candidates.parent[accepted]  # (M,)
    tokens = torch.cat([live.tokens[parent, 1:], candidates.token[accepted, None]], dim=1)  # (M, t)
    token_log_probabilities = torch.cat(
        [live.token_log_probabilities[parent, 1:], candidates.token_log_probability[accepted, None]], dim=1
    )
    for row, symbols, log_probabilities, log_probability, score in zip(
        sentences.row[sentence].tolist(),
        tokens.tolist(),
        token_log_probabilities.tolist(),
        candidates.log_probability[accepted].tolist(),
        scores[accepted].tolist(),
        strict=True,
    ):
        found[row].append(
            Hypothesis(
                tokens=tuple(symbols[:-1] if finished else symbols),
                log_probability=log_probability,
                score=score,
                token_log_probabilities=tuple(log_probabilities),
                finished=finished,
            )
        )


def advance(live: Live, going: Candidates, kept: Tensor) -> Live:
    """Continue the kept sentences (B',) with their candidates, as the next live hypotheses."""
    rows, sentences = len(live.tokens), len(going.parent)
    going = select(going, kept)
    # Forced prefixes and hypotheses given up leave fewer than K: the beam is as wide as the widest sentence needs.
    width = max(1, int((going.log_probability > -math.inf).sum(dim=1).max()))
    parent, token, token_log_probability, log_probability = (column[:, :width].flatten() for column in going)  # (N',)

    left = kept if len(kept) < sentences else None  # None: all of them
    same_rows = len(parent) == rows and torch.equal(parent, torch.arange(rows, device=parent.device))
    return Live(
        tokens=torch.cat([live.tokens[parent], token[:, None]], dim=1),
        token_log_probabilities=torch.cat(
            [live.token_log_probabilities[parent], token_log_probability[:, None]], dim=1
        ),
        log_probability=log_probability,
        coverage=select(live.coverage, parent),
        state=live.state if same_rows else reorder(live.state, parent, left),
        # The hypotheses of one sentence share its memory, so reordering them leaves it as it is.
        memory=live.memory if left is None else select(live.memory, left),
    )
