"""Minimum risk: the expected reward of what the model itself writes, for models that likelihood has trained before.

Shen et al. 2016, section 3, with the mixture of Wu et al. 2016 (GNMT), section 5:

    Q(y | x) = P(y | x)^sharpness / sum over y' in S(x) of the same                 Shen et al., section 3
    risk(x)  = sum over y in S(x) of Q(y | x) (1 - reward(y, reference))            Shen et al., section 3
    loss     = risk + sharpness · likelihood_weight · cross-entropy of the reference  Wu et al., eq. 9

S(x) are the distinct outputs among some that were drawn from the model, and the reference if asked for.

The gradient of the risk is `sharpness` times the sum of Q (reward's lead over the mean) ∇ log P: small as sharpness is,
and otherwise that of an expected reward, Wu et al., eq. 8. A departure from both papers, which do not mix with Q: the
likelihood has the factor `sharpness` too, so that its weight means what it means in Wu et al., whatever the sharpness.

Everything is a sum over sentences, and the count is that of sentences: a risk belongs to a whole output, and an
expected reward is a mean over sentences. All figures of a batch are added up before the loop divides them by the count
of the whole update, so neither accumulation nor the number of processes changes the result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.sampling.batches import Batch
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints
from saccade.decoding.rollout import roll_out
from saccade.decoding.sampling import sample
from saccade.evaluation.sentence_metrics import REWARDS
from saccade.interface import Memory, select
from saccade.symbols import Symbols
from saccade.training.config import RiskConfig
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.objective import Loss

RISK_METRICS = ("risk", "reward")  # reported before those of the likelihood
LOGITS = 1 << 25  # held at once while outputs are scored: 128 MB in float32


class Output(NamedTuple):
    """What a model wrote."""

    tokens: tuple[int, ...]  # without the end
    finished: bool  # False: cut off at the maximum length; it counts with the probability of its beginning


class Candidate(NamedTuple):
    """One output of S(x)."""

    row: int  # its sentence in the batch
    place: int  # its number among the sentence's
    output: Output
    cost: float  # 1 - reward


Draw = Callable[[Any, Batch, RiskConfig, Symbols], list[list[Output]]]
"""From a model and a batch to some outputs for each of its sentences."""


class MinimumRisk:
    """The risk of a batch, and a share of its likelihood."""

    def __init__(
        self,
        settings: RiskConfig,
        likelihood: Likelihood,
        words: Callable[[Sequence[int]], list[str]],
        *,
        vocabulary: int,
        symbols: Symbols,
        draw: Draw | None = None,
    ) -> None:
        self.settings = settings
        self.likelihood = likelihood
        self.words = words  # what rewards are counted in
        self.vocabulary = vocabulary
        self.symbols = symbols
        self.draw = draw or draw_samples
        self.metrics: tuple[str, ...] = (*RISK_METRICS, *likelihood.metrics)
        self.separable = False  # it switches the model to evaluation while it samples
        self.passes = 1  # by the likelihood; its own outputs are many more

    def loss(self, model: Any, batch: Batch) -> Loss:
        """The sum over sentences; `reward` is the mean over all that was drawn, `nll` a sentence's."""
        drawn = self.draw(model, batch, self.settings, self.symbols)
        mixed = self.settings.sharpness * self.settings.likelihood_weight
        with contextlib.nullcontext() if mixed else no_gradient(batch.target.device):
            likelihood = self.likelihood.loss(model, batch)
        candidates, rewards = self.candidates(batch, drawn)
        encoded = model.encode(batch.source)
        memory = replace(encoded, attention=(), auxiliary=None)
        scores = log_probabilities(
            model, memory, candidates, self.symbols, cells=max(1, LOGITS // self.vocabulary)
        )  # (N,)
        risk = summed_risk(scores, candidates, self.settings.sharpness)
        total = risk + mixed * likelihood.total if mixed else risk
        if encoded.auxiliary is not None:  # a model's own wish is no part of the mixture, but of the risk's small size
            total = total + self.settings.sharpness * len(drawn) * encoded.auxiliary.loss
        metrics = {**likelihood.metrics, "risk": float(risk.detach()), "reward": rewards}
        return Loss(total, len(drawn), metrics)

    def candidates(self, batch: Batch, drawn: Sequence[Sequence[Output]]) -> tuple[list[Candidate], float]:
        """S(x) of all sentences, and the sum over sentences of the mean reward of what was drawn."""
        reward = REWARDS[self.settings.reward]
        candidates: list[Candidate] = []
        total = 0.0
        lengths = batch.target_mask.sum(1).tolist()
        for row, (target, length, outputs) in enumerate(zip(batch.target.tolist(), lengths, drawn, strict=True)):
            reference = Output(tuple(target[: length - 1]), finished=True)
            wanted = self.words(reference.tokens)
            found = {output: reward(self.words(output.tokens), wanted) for output in outputs}
            total += sum(found[output] for output in outputs) / max(1, len(outputs))
            if self.settings.include_reference or not found:
                found = {reference: 1.0, **found}
            for place, (output, value) in enumerate(found.items()):
                candidates.append(Candidate(row, place, output, 1 - value))
        return candidates, total


def draw_samples(model: Any, batch: Batch, settings: RiskConfig, symbols: Symbols) -> list[list[Output]]:
    """`samples` outputs of each sentence, at random.

    Without dropout: rewards are for what the model would write in use. The random numbers are keyed by one number of
    torch's own generator and by the examples' places in the corpus, so that seeding torch is enough.
    """
    seed = int(torch.randint(2**62, ()))
    config = DecodingConfig(sample=True, nbest=settings.samples, temperature=settings.temperature, seed=seed)
    lengths = batch.target_mask.sum(1)  # (B,)
    limits = (lengths * settings.max_length_factor).ceil().long() + settings.max_length_offset
    if model.longest is not None:
        limits = limits.clamp(max=model.longest)
    with evaluating(model), no_gradient(lengths.device):
        memory = model.encode(batch.source)
        constraints = Constraints(limits, limits.new_empty(len(limits), 0))
        indices = batch.indices or range(len(limits))
        found = sample(model, memory, constraints, config, symbols, indices)
    return [[Output(one.tokens, one.finished) for one in some if one.log_probability > -math.inf] for some in found]


def rehearse(model: Any, batch: Batch, settings: RiskConfig, symbols: Symbols) -> list[list[Output]]:
    """As many outputs as would be drawn, at the same cost, but as long as the references, whatever the weights.

    For counting operations and for forecasts: what a run reports must not depend on where it was resumed. The outputs
    are the references with another first token each.
    """
    lowest = max(symbols.pad, symbols.begin, symbols.end, symbols.unknown) + 1
    rows, device = batch.target.size(0), batch.target.device
    copies = torch.arange(rows, device=device).repeat_interleave(settings.samples)  # (B·K,)
    limits = batch.target_mask.sum(1).index_select(0, copies)
    written = batch.target.index_select(0, copies)  # (B·K, T)
    written = written.masked_fill(written == symbols.unknown, lowest)
    known = torch.unique(written[written >= lowest])
    if len(known):
        turn = torch.arange(len(copies), device=device) % settings.samples % len(known)
        written[:, 0] = torch.where(limits > 1, known[turn], written[:, 0])
    with evaluating(model), no_gradient(device):
        memory = model.encode(batch.source)
        config = DecodingConfig(beam=1, nbest=1)
        constraints = Constraints(limits, limits.new_empty(len(limits), 0))
        roll_out(model, select(memory, copies), constraints, config, symbols, lambda _, row, place: written[row, place])
    outputs = [
        Output(tuple(tokens[: length - 1]), finished=True)
        for tokens, length in zip(written.tolist(), limits.tolist(), strict=True)
    ]
    return [outputs[first : first + settings.samples] for first in range(0, len(outputs), settings.samples)]


def log_probabilities(
    model: Any, memory: Memory, candidates: Sequence[Candidate], symbols: Symbols, *, cells: int
) -> Tensor:
    """log P of each candidate given its sentence: (N,).

    Candidates of like length go together, at most `cells` positions at a time; no more logits than theirs are held.
    """
    order = sorted(range(len(candidates)), key=lambda number: len(candidates[number].output.tokens))
    device = memory.mask.device
    found: list[Tensor] = []
    for numbers in grouped(order, [len(one.output.tokens) + 1 for one in candidates], cells):
        rows = torch.tensor([candidates[number].row for number in numbers], device=device)
        targets = padded([candidates[number].output for number in numbers], symbols).to(device)
        found.append(score_group(model, select(memory, rows), targets, symbols))
    return torch.cat(found).index_select(0, torch.tensor(order, device=device).argsort())


def score_group(model: Any, memory: Memory, targets: Tensor, symbols: Symbols) -> Tensor:
    """log P of targets (n, T), padded, each given its row of the memory: (n,); padding never reaches the output layer.

    The model is in its own mode, so dropout acts on these probabilities as it does on those of the likelihood.
    """
    mask = targets != symbols.pad  # (n, T)
    prefix = torch.cat([torch.full_like(targets[:, :1], symbols.begin), targets[:, :-1]], dim=1)
    decoded = model.decode(prefix.masked_fill(~mask, symbols.pad), memory)
    real = mask.flatten().nonzero().squeeze(1)  # (m,)
    outputs = decoded.outputs.flatten(0, 1).index_select(0, real)  # (m, D)
    tokens = targets.flatten().index_select(0, real)  # (m,)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    logs: Tensor = RecomputedLogProbabilities.apply(model.logits, outputs, tokens, *parameters)  # type: ignore[no-untyped-call]
    return logs.new_zeros(len(targets)).index_add(0, real // targets.size(1), logs)


class RecomputedLogProbabilities(torch.autograd.Function):
    """Output layer and log-probabilities of targets; the logits are computed again on the way back instead of kept.

    Unlike the cross-entropy of the likelihood it cannot take its gradient on the way forward: how much a token counts
    depends on all outputs of its sentence.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Callable[[Tensor], Tensor], outputs: Tensor, targets: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        """outputs (m, D), targets (m,) to (m,)."""
        ctx.save_for_backward(outputs, targets)
        ctx.logits, ctx.parameters = logits, parameters
        ctx.random, ctx.mixed = random_state(outputs.device), mixed_precision(outputs.device)
        with no_gradient(outputs.device):
            return target_logs(logits(outputs), targets)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Any, ...]:
        """The gradient of what came after (m,), through an output layer that drops the same units as before."""
        outputs, targets = ctx.saved_tensors
        devices = [outputs.device] if outputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad(), ctx.mixed():
            set_random_state(ctx.random, outputs.device)
            leaf = outputs.detach().requires_grad_()
            logs = target_logs(ctx.logits(leaf), targets)
            found = torch.autograd.grad(logs, [leaf, *ctx.parameters], slopes, allow_unused=True)
        return (None, found[0], None, *found[1:])


def target_logs(logits: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of one target for each row: (m, V), (m,) to (m,), at least in float32."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(-1, dtype=wide).gather(1, targets[:, None]).squeeze(1)


def summed_risk(scores: Tensor, candidates: Sequence[Candidate], sharpness: float) -> Tensor:
    """The risk of all sentences together, from log P of their candidates (N,)."""
    rows = torch.tensor([one.row for one in candidates], device=scores.device)
    places = torch.tensor([one.place for one in candidates], device=scores.device)
    costs = torch.tensor([one.cost for one in candidates], device=scores.device, dtype=scores.dtype)
    shape = int(rows.max()) + 1, int(places.max()) + 1  # (B, K)
    table = scores.new_full(shape, -math.inf).index_put((rows, places), sharpness * scores)
    return (table.softmax(1) * costs.new_zeros(shape).index_put((rows, places), costs)).sum()


def grouped(order: Sequence[int], lengths: Sequence[int], cells: int) -> Iterator[list[int]]:
    """The numbers in their order, which is by length, in groups of at most so many positions, padding counted."""
    group: list[int] = []
    for number in order:
        if group and (len(group) + 1) * lengths[number] > cells:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def padded(outputs: Sequence[Output], symbols: Symbols) -> Tensor:
    """Outputs of different lengths in one rectangle; those that are finished have their end."""
    rows = [[*output.tokens, *[symbols.end] * output.finished] for output in outputs]
    longest = max(map(len, rows))
    return torch.tensor([row + [symbols.pad] * (longest - len(row)) for row in rows])


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each part of it is in its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def no_gradient(device: torch.device) -> Iterator[None]:
    """No gradient in here; autocast must not cache weights without one, it would hand them out later."""
    with torch.no_grad(), mixed_precision(device)():
        yield


def mixed_precision(device: torch.device) -> Callable[[], torch.autocast]:
    """Autocast as it is now, but without its cache, to be entered now or later."""
    kind = device.type
    enabled, kept = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=kept, enabled=enabled, cache_enabled=False)


def random_state(device: torch.device) -> list[Tensor]:
    """Where the generators stand that a layer on this device draws from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_state(state: Sequence[Tensor], device: torch.device) -> None:
    """Put the generators back."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
