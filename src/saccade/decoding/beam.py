"""Beam search: the K most probable hypotheses of each sentence live side by side.

Each step takes the 2K best continuations of a sentence. Those that end are scored, and kept if they are among its n
best; the K best others live on, ranked by log-probability: they have one length, and their coverage is not complete.
What could no longer beat the hypotheses found is given up, and a sentence leaves the batch when nothing of it lives, or
at its maximum length. Giving up never changes the result: whatever would have taken the place of a hypothesis that was
given up is less probable than that, and so could not win either.

The model's outputs stay on its device; what is kept of them, some candidates a row, is sorted out on the CPU, in numpy:
for so few numbers a call of torch takes longer to begin than to run, and a GPU would be waited for at every turn.

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
from saccade.decoding.constraints import Constraints, allow, allowed_tokens, keep_to_, never_written
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis, ranked
from saccade.decoding.penalties import coverage_penalty, length_penalty
from saccade.errors import SaccadeError
from saccade.interface import Attention, Decodes, Memory, Step, reorder, select
from saccade.ops.top_k import largest, top_k
from saccade.symbols import Symbols

ROWS = 512  # whose logits are made at once on the CPU: few enough for its cache

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

NEVER = np.float32(-math.inf)


class Live(NamedTuple):
    """The live hypotheses: N rows, those of one sentence together."""

    tokens: Integers  # (N, t) begin first
    token_log_probabilities: Floats  # (N, t) 0 for begin
    log_probability: Floats  # (N,) -inf for a row that only fills up its sentence's W
    coverage: Tensor | None  # (N, S) the attention that each source position has received; None: nobody asks
    state: Any
    memory: Memory  # B rows


class Sentences(NamedTuple):
    """The sentences still searched."""

    row: Integers  # (B,) their numbers in the batch
    limits: Integers  # (B,) the most symbols of each
    best: Floats  # (B, nbest) scores of the best finished hypotheses, falling, -inf where there is none yet
    constraints: Constraints  # of these sentences, where the model is

    def take(self, kept: Integers) -> Sentences:
        """Some of them (B',)."""
        return Sentences(self.row[kept], self.limits[kept], self.best[kept], self.constraints.of(kept))


class Candidates(NamedTuple):
    """Continuations of live hypotheses, most probable first; those at -inf are none."""

    parent: Integers  # (B, C) the live row that is continued, 0 … N-1
    token: Integers  # (B, C)
    token_log_probability: Floats  # (B, C)
    log_probability: Floats  # (B, C) of the whole hypothesis

    def take(self, rows: Integers | slice, places: slice) -> Candidates:
        """Those of some sentences, and of them the ones at some places."""
        return Candidates(
            self.parent[rows, places],
            self.token[rows, places],
            self.token_log_probability[rows, places],
            self.log_probability[rows, places],
        )


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
    longest = int(sentences.limits.max())
    lengths = torch.arange(1, longest + 1)
    penalties = length_penalty(lengths, config.length_penalty, config.length_alpha).numpy()  # (longest,)
    found: list[list[Hypothesis]] = [[] for _ in sentences.row]
    for length in range(1, longest + 1):
        newest = torch.from_numpy(live.tokens[:, -1].copy()).to(memory.mask.device)
        step = model.step(newest, live.state, live.memory, record=live.coverage is not None)
        live = look(live, step)
        candidates = expand(live, model, step.output, sentences.constraints, config, symbols)  # (B, C)
        ended = ending(candidates, symbols)
        going = continuing(candidates, config, symbols)

        scores = penalised(ended, live, penalties[length - 1], config)  # (B, C)
        sentences = sentences._replace(best=falling(np.concatenate([sentences.best, scores], 1))[:, : config.nbest])
        collect(found, ended, scores, scores >= sentences.best[:, -1:], live, sentences, finished=True)

        at_limit = sentences.limits == length  # (B,)
        if at_limit.any():
            scores = penalised(going, live, penalties[length - 1], config)  # (B, K)
            collect(found, going, scores, at_limit[:, None], live, sentences, finished=False)

        going = give_up(going, sentences, penalties) if early_stop else going
        lives = going.log_probability[:, 0] > -math.inf  # (B,) the best of them comes first
        kept = np.flatnonzero(lives & ~at_limit)
        if len(kept) == 0:
            break
        live = advance(live, going, kept)
        sentences = sentences if len(kept) == len(lives) else sentences.take(kept)
    return [ranked(hypotheses)[: config.nbest] or [IMPOSSIBLE] for hypotheses in found]


def begin(model: Decodes, memory: Memory, config: DecodingConfig, symbols: Symbols) -> Live:
    """One empty hypothesis for each sentence; the beams widen with the first step."""
    tokens = np.full((memory.mask.size(0), 1), symbols.begin, dtype=np.int64)
    zeros = np.zeros(tokens.shape, dtype=np.float32)
    coverage = torch.zeros_like(memory.mask, dtype=torch.float32) if config.coverage_beta else None
    return Live(tokens, zeros, zeros[:, 0], coverage, model.start(memory), memory)


def all_sentences(constraints: Constraints, config: DecodingConfig) -> Sentences:
    """Every sentence of the batch, with nothing found yet."""
    limits = constraints.limits.cpu().numpy()
    best = np.full((len(limits), config.nbest), -math.inf, dtype=np.float32)
    return Sentences(np.arange(len(limits)), limits, best, constraints)


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
    alive = np.flatnonzero(live.log_probability > -math.inf)  # (A,) rows that only fill up need no logits
    if len(alive) < rows:
        outputs = outputs.index_select(0, torch.from_numpy(alive).to(outputs.device))  # (A, D)
    together = ROWS if outputs.device.type == "cpu" else rows
    parts = []
    for first in range(0, len(alive), together):
        some = alive[first : first + together] // (rows // sentences)
        own = constraints if constraints.on_length_only else constraints.of(some)
        logits = model.logits(outputs[first : first + together])
        parts.append(continuations(logits, live.tokens.shape[1] - 1, own, config, symbols))
    local, tokens = (np.concatenate([part.cpu().numpy() for part in column]) for column in zip(*parts, strict=True))
    if len(alive) < rows:
        local, tokens = filled_up(local, alive, rows, -math.inf), filled_up(tokens, alive, rows, 0)  # (N, C)
    width = local.shape[1]
    total = (live.log_probability[:, None] + local).reshape(sentences, -1)  # (B, W·C)
    best = (-total).argsort(axis=1, kind="stable")[:, : 2 * config.beam]  # (B, C)
    return Candidates(
        parent=best // width + np.arange(0, rows, rows // sentences)[:, None],
        token=taken(tokens.reshape(sentences, -1), best),
        token_log_probability=taken(local.reshape(sentences, -1), best),
        log_probability=taken(total, best),
    )


def continuations(
    logits: Tensor, position: int, constraints: Constraints, config: DecodingConfig, symbols: Symbols
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and tokens (A, C) of the best continuations of each row, from its logits (A, V).

    All 2K of a sentence may come from one row, and no more than that can: 2K of each row are enough.
    """
    count = min(2 * config.beam, logits.size(1))
    prefixes = constraints.prefixes
    if position >= prefixes.size(1):
        suppressed = never_written(position, config, symbols)
        return top_k(logits, count, suppressed, allowed_tokens(constraints.allowed))
    log_probabilities = keep_to_(logits, constraints.allowed).log_softmax(dim=-1, dtype=torch.float32)
    return largest(allow(log_probabilities, position, prefixes, config, symbols), count)


def ending(candidates: Candidates, symbols: Symbols) -> Candidates:
    """The candidates that end, the others at -inf."""
    return candidates._replace(
        log_probability=np.where(candidates.token == symbols.end, candidates.log_probability, NEVER)
    )


def continuing(candidates: Candidates, config: DecodingConfig, symbols: Symbols) -> Candidates:
    """The K best candidates (B, K) that do not end."""
    log_probability = np.where(candidates.token == symbols.end, NEVER, candidates.log_probability)
    order = (-log_probability).argsort(axis=1, kind="stable")[:, : config.beam]
    going = candidates._replace(log_probability=log_probability)
    return Candidates(*(taken(column, order) for column in going))


def penalised(candidates: Candidates, live: Live, penalty: np.float32, config: DecodingConfig) -> Floats:
    """The scores (B, C) that rank hypotheses of any length: Wu et al. 2016, section 7, equation 14."""
    scores = candidates.log_probability / penalty
    if live.coverage is None:
        return scores
    mask = live.memory.mask.repeat_interleave(len(live.tokens) // len(live.memory.mask), dim=0)  # (N, S)
    penalties: Floats = coverage_penalty(live.coverage, mask, config.coverage_beta).cpu().numpy()  # (N,)
    return scores + penalties[candidates.parent]


def give_up(going: Candidates, sentences: Sentences, penalties: Floats) -> Candidates:
    """The candidates (B, K) with those at -inf that cannot enter a sentence's n best any more.

    A log-probability can only fall and a coverage penalty only lower a score, so a live hypothesis cannot do better
    than to reach the maximum length, where the length penalty is most lenient, and lose nothing on the way.
    """
    most_lenient = penalties[sentences.limits - 1]  # (B,)
    hopeless = sentences.best[:, -1:] >= going.log_probability / most_lenient[:, None]  # (B, K)
    return going._replace(log_probability=np.where(hopeless, NEVER, going.log_probability))


def collect(
    found: list[list[Hypothesis]],
    candidates: Candidates,
    scores: Floats,
    accepted: NDArray[np.bool_],
    live: Live,
    sentences: Sentences,
    *,
    finished: bool,
) -> None:
    """Add the accepted candidates (B, C), as far as they are possible at all, to what their sentences have found."""
    accepted = accepted & (candidates.log_probability > -math.inf)
    for sentence, place in zip(*(numbers.tolist() for numbers in accepted.nonzero()), strict=True):
        parent, *last = (column[sentence, place].item() for column in candidates)
        tokens = (*live.tokens[parent, 1:].tolist(), last[0])
        found[sentences.row[sentence]].append(
            Hypothesis(
                tokens=tokens[:-1] if finished else tokens,
                log_probability=last[2],
                score=scores[sentence, place].item(),
                token_log_probabilities=(*live.token_log_probabilities[parent, 1:].tolist(), last[1]),
                finished=finished,
            )
        )


def advance(live: Live, going: Candidates, kept: Integers) -> Live:
    """Continue the kept sentences (B',) with their candidates, as the next live hypotheses."""
    rows, sentences = len(live.tokens), len(going.parent)
    everybody = len(kept) == sentences
    # Forced prefixes and hypotheses given up leave fewer than K: the beam is as wide as the widest sentence needs.
    width = max(1, int((going.log_probability[kept] > -math.inf).sum(axis=1).max()))
    going = going.take(slice(None) if everybody else kept, slice(width))  # (B', W')
    parent = going.parent.ravel()  # (N',)

    device = live.memory.mask.device
    hypotheses = torch.from_numpy(parent).to(device)
    left = None if everybody else torch.from_numpy(kept).to(device)
    same_rows = len(parent) == rows and np.array_equal(parent, np.arange(rows))
    return Live(
        tokens=np.concatenate([live.tokens[parent], going.token.reshape(-1, 1)], 1),
        token_log_probabilities=np.concatenate(
            [live.token_log_probabilities[parent], going.token_log_probability.reshape(-1, 1)], 1
        ),
        log_probability=going.log_probability.ravel(),
        coverage=select(live.coverage, hypotheses),
        state=live.state if same_rows else reorder(live.state, hypotheses, left),
        # The hypotheses of one sentence share its memory, so reordering them leaves it as it is.
        memory=live.memory if left is None else select(live.memory, left),
    )


def taken(values: NDArray[Any], places: Integers) -> NDArray[Any]:
    """values (B, M) at the places (B, C) of each row."""
    return np.take_along_axis(values, places, axis=1)


def falling(values: Floats) -> Floats:
    """Each row with its largest value first."""
    return np.sort(values, axis=1)[:, ::-1]


def filled_up(values: NDArray[Any], rows: Integers, count: int, filler: float) -> NDArray[Any]:
    """(A, C) to (count, C), with the filler in the other rows."""
    filled = np.full((count, values.shape[1]), filler, dtype=values.dtype)
    filled[rows] = values
    return filled
