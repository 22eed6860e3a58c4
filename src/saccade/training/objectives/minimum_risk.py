"""Minimum risk training: maximize the expected reward of sampled outputs, after training with likelihood.

Shen et al. 2016, section 3, with the mixture of Wu et al. 2016 (GNMT), section 5:

    Q(y | x) = P(y | x)^sharpness / sum over y' in S(x) of the same                 Shen et al., section 3
    risk(x)  = sum over y in S(x) of Q(y | x) (1 - reward(y, reference))            Shen et al., section 3
    loss     = risk + sharpness · likelihood_weight · cross-entropy of the reference  Wu et al., eq. 9

S(x) is the set of distinct sampled outputs, with the reference if `include_reference` is set.

The gradient of the risk is `sharpness` times the sum of Q · (reward - mean reward) · ∇ log P: the gradient of an
expected reward (Wu et al., eq. 8), scaled by sharpness. A departure from both papers, which do not combine Q with a
likelihood: the likelihood has the factor `sharpness` too, so that its weight has the same meaning as in Wu et al.

All values are sums over sentences, and the count is the number of sentences, because a risk belongs to a whole output.
The loop divides the sums by the count of the whole update, so neither gradient accumulation nor the number of processes
changes the result.
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

RISK_METRICS = ("risk", "reward")  # reported before the metrics of the likelihood
MAX_LOGITS = 1 << 25  # in memory at once while outputs are scored: 128 MB in float32


class Output(NamedTuple):
    """An output of the model."""

    tokens: tuple[int, ...]  # without the end symbol
    finished: bool  # False: cut off at the maximum length; its probability is that of the prefix


class Candidate(NamedTuple):
    """One output of S(x)."""

    row: int  # index of its sentence in the batch
    number: int  # index within the sentence's candidates
    output: Output
    cost: float  # 1 - reward


Sampler = Callable[[Any, Batch, RiskConfig, Symbols], list[list[Output]]]
"""From a model and a batch to several outputs for each sentence."""


class MinimumRisk:
    """Risk of a batch plus its weighted likelihood."""

    def __init__(
        self,
        settings: RiskConfig,
        likelihood: Likelihood,
        words: Callable[[Sequence[int]], list[str]],
        *,
        vocabulary: int,
        symbols: Symbols,
        sampler: Sampler | None = None,
    ) -> None:
        self.settings = settings
        self.likelihood = likelihood
        self.words = words  # from token ids to the units of the reward
        self.vocabulary = vocabulary
        self.symbols = symbols
        self.sampler = sampler or sample_outputs
        self.metrics: tuple[str, ...] = (*RISK_METRICS, *likelihood.metrics)
        self.separable = False  # sampling switches the model to evaluation mode
        self.passes = 1  # of the likelihood; sampled outputs are not counted

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Sum the loss over sentences; the metric `reward` sums the mean reward of each sentence's samples."""
        samples = self.sampler(model, batch, self.settings, self.symbols)
        mixed = self.settings.sharpness * self.settings.likelihood_weight
        with contextlib.nullcontext() if mixed else no_gradient(batch.target.device):
            likelihood = self.likelihood.loss(model, batch)
        candidates, rewards = self.candidates(batch, samples)
        encoded = model.encode(batch.source)
        memory = replace(encoded, attention=(), auxiliary=None)
        scores = log_probabilities(
            model, memory, candidates, self.symbols, max_positions=max(1, MAX_LOGITS // self.vocabulary)
        )  # (N,)
        risk = summed_risk(scores, candidates, self.settings.sharpness)
        total = risk + mixed * likelihood.total if mixed else risk
        if encoded.auxiliary is not None:  # scaled by sharpness, like the gradient of the risk
            total = total + self.settings.sharpness * len(samples) * encoded.auxiliary.loss
        metrics = {**likelihood.metrics, "risk": float(risk.detach()), "reward": rewards}
        return Loss(total, len(samples), metrics)

    def candidates(self, batch: Batch, samples: Sequence[Sequence[Output]]) -> tuple[list[Candidate], float]:
        """Return S(x) of all sentences, and the sum over sentences of the mean reward of their samples."""
        reward = REWARDS[self.settings.reward]
        candidates: list[Candidate] = []
        total = 0.0
        lengths = batch.target_mask.sum(1).tolist()
        for row, (target, length, outputs) in enumerate(zip(batch.target.tolist(), lengths, samples, strict=True)):
            reference = Output(tuple(target[: length - 1]), finished=True)
            reference_words = self.words(reference.tokens)
            rewards = {output: reward(self.words(output.tokens), reference_words) for output in outputs}
            total += sum(rewards[output] for output in outputs) / max(1, len(outputs))
            if self.settings.include_reference or not rewards:
                rewards = {reference: 1.0, **rewards}
            for index, (output, value) in enumerate(rewards.items()):
                candidates.append(Candidate(row, index, output, 1 - value))
        return candidates, total


def sample_outputs(model: Any, batch: Batch, settings: RiskConfig, symbols: Symbols) -> list[list[Output]]:
    """Sample `samples` outputs of each sentence.

    Without dropout, because rewards are for outputs at inference. The random numbers are keyed by one number of torch's
    generator and by the indices of the examples in the corpus, so that seeding torch makes sampling reproducible.
    """
    seed = int(torch.randint(2**62, ()))
    config = DecodingConfig(sample=True, nbest=settings.samples, temperature=settings.temperature, seed=seed)
    lengths = batch.target_mask.sum(1)  # (B,)
    limits = (lengths * settings.max_length_factor).ceil().long() + settings.max_length_offset
    if model.longest is not None:
        limits = limits.clamp(max=model.longest)
    with eval_mode(model), no_gradient(lengths.device):
        memory = model.encode(batch.source)
        constraints = Constraints(limits, limits.new_empty(len(limits), 0))
        indices = batch.indices or range(len(limits))
        found = sample(model, memory, constraints, config, symbols, indices)
    return [[Output(one.tokens, one.finished) for one in some if one.log_probability > -math.inf] for some in found]


def dry_run_outputs(model: Any, batch: Batch, settings: RiskConfig, symbols: Symbols) -> list[list[Output]]:
    """Return as many outputs as would be sampled, at the same cost and as long as the references.

    For FLOP counts and forecasts, which must not depend on the weights (and so on where a run was resumed). The outputs
    are the references with different first tokens.
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
    with eval_mode(model), no_gradient(device):
        memory = model.encode(batch.source)
        config = DecodingConfig(beam=1, nbest=1)
        constraints = Constraints(limits, limits.new_empty(len(limits), 0))
        roll_out(model, select(memory, copies), constraints, config, symbols, lambda _, row, step: written[row, step])
    outputs = [
        Output(tuple(tokens[: length - 1]), finished=True)
        for tokens, length in zip(written.tolist(), limits.tolist(), strict=True)
    ]
    return [outputs[first : first + settings.samples] for first in range(0, len(outputs), settings.samples)]


def log_probabilities(
    model: Any, memory: Memory, candidates: Sequence[Candidate], symbols: Symbols, *, max_positions: int
) -> Tensor:
    """Return log P of each candidate given its sentence: (N,).

    Candidates are batched by length, at most `max_positions` positions at a time, to limit the memory for logits.
    """
    order = sorted(range(len(candidates)), key=lambda number: len(candidates[number].output.tokens))
    device = memory.mask.device
    found: list[Tensor] = []
    for numbers in batch_by_length(order, [len(one.output.tokens) + 1 for one in candidates], max_positions):
        rows = torch.tensor([candidates[number].row for number in numbers], device=device)
        targets = pad_outputs([candidates[number].output for number in numbers], symbols).to(device)
        found.append(score_group(model, select(memory, rows), targets, symbols))
    return torch.cat(found).index_select(0, torch.tensor(order, device=device).argsort())


def score_group(model: Any, memory: Memory, targets: Tensor, symbols: Symbols) -> Tensor:
    """Return log P (n,) of padded targets (n, T), each given its row of the memory.

    Padding does not reach the output layer. The mode of the model is unchanged: dropout is active in training.
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
    """Output layer and log-probabilities of targets; the backward pass recomputes the logits instead of storing them.

    Unlike chunked cross-entropy it cannot compute the gradient in the forward pass: the weight of a token depends on
    all outputs of its sentence.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Callable[[Tensor], Tensor], outputs: Tensor, targets: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        """outputs (m, D), targets (m,) to (m,)."""
        ctx.save_for_backward(outputs, targets)
        ctx.logits, ctx.parameters = logits, parameters
        ctx.rng_state, ctx.autocast = get_rng_state(outputs.device), current_autocast(outputs.device)
        with no_gradient(outputs.device):
            return target_log_probabilities(logits(outputs), targets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Propagate the gradient (m,) through the recomputed output layer, with the same dropout masks."""
        outputs, targets = ctx.saved_tensors
        devices = [outputs.device] if outputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad(), ctx.autocast():
            set_rng_state(ctx.rng_state, outputs.device)
            leaf = outputs.detach().requires_grad_()
            logs = target_log_probabilities(ctx.logits(leaf), targets)
            gradients = torch.autograd.grad(logs, [leaf, *ctx.parameters], gradient, allow_unused=True)
        return (None, gradients[0], None, *gradients[1:])


def target_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of one target per row, at least in float32: (m, V), (m,) to (m,)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(-1, dtype=wide).gather(1, targets[:, None]).squeeze(1)


def summed_risk(scores: Tensor, candidates: Sequence[Candidate], sharpness: float) -> Tensor:
    """Sum the risk over sentences, from log P of their candidates (N,)."""
    rows = torch.tensor([one.row for one in candidates], device=scores.device)
    columns = torch.tensor([one.number for one in candidates], device=scores.device)
    costs = torch.tensor([one.cost for one in candidates], device=scores.device, dtype=scores.dtype)
    shape = int(rows.max()) + 1, int(columns.max()) + 1  # (B, K)
    table = scores.new_full(shape, -math.inf).index_put((rows, columns), sharpness * scores)
    return (table.softmax(1) * costs.new_zeros(shape).index_put((rows, columns), costs)).sum()


def batch_by_length(order: Sequence[int], lengths: Sequence[int], max_positions: int) -> Iterator[list[int]]:
    """Group indices that are sorted by length into batches of at most `max_positions` positions with padding."""
    group: list[int] = []
    for number in order:
        if group and (len(group) + 1) * lengths[number] > max_positions:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def pad_outputs(outputs: Sequence[Output], symbols: Symbols) -> Tensor:
    """Pad outputs to one tensor (n, T); finished ones get an end symbol."""
    rows = [[*output.tokens, *[symbols.end] * output.finished] for output in outputs]
    longest = max(map(len, rows))
    return torch.tensor([row + [symbols.pad] * (longest - len(row)) for row in rows])


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch the model to evaluation mode; on exit restore the mode of each module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def no_gradient(device: torch.device) -> Iterator[None]:
    """Disable gradients, and autocast's cache: it would return weights without gradient later."""
    with torch.no_grad(), current_autocast(device)():
        yield


def current_autocast(device: torch.device) -> Callable[[], torch.autocast]:
    """Return a factory of autocast contexts with the current settings, but without cache."""
    kind = device.type
    enabled, kept = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=kept, enabled=enabled, cache_enabled=False)


def get_rng_state(device: torch.device) -> list[Tensor]:
    """Return the states of the generators that layers on this device use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_rng_state(state: Sequence[Tensor], device: torch.device) -> None:
    """Restore the states that `get_rng_state` returned."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
