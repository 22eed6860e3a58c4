"""Minimum risk training: maximize the expected reward of sampled outputs, after training with likelihood.

Shen et al. 2016, section 3, with the mixture of Wu et al. 2016 (GNMT), section 5:

    Q(y | x) = P(y | x)^sharpness / sum over y' in S(x) of P(y' | x)^sharpness      Shen et al., section 3
    risk(x)  = sum over y in S(x) of Q(y | x) (1 - reward(y, reference))            Shen et al., section 3
    loss     = risk + sharpness · likelihood_weight · cross-entropy of the reference  Wu et al., eq. 9

S(x) is the set of distinct sampled outputs, with the reference if `include_reference` is set.

The gradient of the risk is `sharpness` times the sum of Q · (reward - mean reward) · ∇ log P: the gradient of an
expected reward (Wu et al., eq. 8), scaled by sharpness. A departure from both papers, which do not combine Q with a
likelihood: the likelihood has the factor `sharpness` too, so that its weight is that of Wu et al.

All values are sums over sentences, and the count is the number of sentences: a risk is a property of a complete output.
The loop divides the sums by the count of the update, so neither gradient accumulation nor the number of processes
changes the result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.sampling.batches import Batch
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints
from saccade.decoding.rollout import roll_out
from saccade.decoding.sampling import sample
from saccade.evaluation.sentence_metrics import REWARDS
from saccade.interface import select
from saccade.symbols import Symbols
from saccade.training.config import RiskConfig
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.objective import Loss
from saccade.training.objectives.output_log_probabilities import Output, log_probabilities, no_gradient

RISK_METRICS = ("risk", "reward")  # reported before the metrics of the likelihood
MAX_LOGITS = 1 << 25  # in memory at once while outputs are scored: 128 MB in float32


class Candidate(NamedTuple):
    """One output of S(x)."""

    row: int  # index of its sentence in the batch
    number: int  # index within the sentence's candidates
    output: Output
    cost: float  # 1 - reward


Sampler = Callable[[Any, Batch, RiskConfig, Symbols], list[list[Output]]]
"""Function from a model and a batch to several outputs for each sentence."""


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
            model,
            memory,
            [one.row for one in candidates],
            [one.output for one in candidates],
            self.symbols,
            max_positions=max(1, MAX_LOGITS // self.vocabulary),
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
    if model.max_target_positions is not None:
        limits = limits.clamp(max=model.max_target_positions)
    with eval_mode(model), no_gradient(lengths.device):
        memory = model.encode(batch.source)
        constraints = Constraints(limits, limits.new_empty(len(limits), 0))
        indices = batch.indices or range(len(limits))
        found = sample(model, memory, constraints, config, symbols, indices)
    return [[Output(one.tokens, one.finished) for one in some if one.log_probability > -math.inf] for some in found]


def dry_run_outputs(model: Any, batch: Batch, settings: RiskConfig, symbols: Symbols) -> list[list[Output]]:
    """Return as many outputs as would be sampled, at equal cost and as long as the references.

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


def summed_risk(scores: Tensor, candidates: Sequence[Candidate], sharpness: float) -> Tensor:
    """Sum the risk over sentences, from log P of their candidates (N,)."""
    rows = torch.tensor([one.row for one in candidates], device=scores.device)
    columns = torch.tensor([one.number for one in candidates], device=scores.device)
    costs = torch.tensor([one.cost for one in candidates], device=scores.device, dtype=scores.dtype)
    shape = int(rows.max()) + 1, int(columns.max()) + 1  # (B, K)
    table = scores.new_full(shape, -math.inf).index_put((rows, columns), sharpness * scores)
    return (table.softmax(1) * costs.new_zeros(shape).index_put((rows, columns), costs)).sum()


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
