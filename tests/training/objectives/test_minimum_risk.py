"""Minimum risk equals slow references: enumeration, finite differences, one output at a time."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from contracts.registered_models import SIZES, build_model, make_batch, take
from saccade.decoding.scoring import score
from saccade.errors import SaccadeError
from saccade.evaluation.sentence_metrics import gleu
from saccade.interface import VocabularySizes, select
from saccade.symbols import Symbols
from saccade.training.config import RiskConfig
from saccade.training.config_resolution import resolve_config
from saccade.training.gradient_accumulation import accumulate
from saccade.training.objectives import minimum_risk
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.minimum_risk import MinimumRisk, dry_run_outputs, sample_outputs
from saccade.training.objectives.objective import Loss
from saccade.training.objectives.output_log_probabilities import (
    Output,
    RecomputedLogProbabilities,
    batch_by_length,
    log_probabilities,
)

SYMBOLS = Symbols()
SMALL = VocabularySizes(source=9, target=6, joint=False)


def words(ids):
    return [str(token) for token in ids]


class NoLikelihood:
    """Objective without loss, for models in double precision."""

    metrics = ()

    def loss(self, model, batch):
        return Loss(torch.zeros(()), 1)


def make_objective(sampler=None, vocabulary=SIZES.target, likelihood=None, **settings):
    return MinimumRisk(
        RiskConfig(**settings),
        likelihood or Likelihood(),
        words,
        vocabulary=vocabulary,
        symbols=SYMBOLS,
        sampler=sampler,
    )


def every_output(model, batch, settings, symbols):
    """All outputs of at most two tokens over a vocabulary of two words."""
    finished = [Output(tokens, True) for length in range(2) for tokens in product((4, 5), repeat=length)]
    return [finished + [Output(tokens, False) for tokens in product((4, 5), repeat=2)]] * batch.target.size(0)


def test_risk_over_all_outputs_is_the_expected_cost():
    """Sharpness 1 and every output there is: the sum of P (1 - reward), over the mass of what may be written."""
    model = build_model(("transformer", {}), SMALL)
    batch = make_batch([5, 3], [3, 2], SMALL)
    found = make_objective(every_output, SMALL.target, sharpness=1, likelihood_weight=0, include_reference=False).loss(
        model, batch
    )
    memory = model.encode(batch.source)
    expected = 0.0
    for row, outputs in enumerate(every_output(None, batch, None, None)):
        reference = batch.target[row][batch.target_mask[row]].tolist()[:-1]
        masses, costs = [], []
        for output in outputs:
            target = torch.tensor([[*output.tokens, *[SYMBOLS.end] * output.finished]])
            masses.append(
                score(model, select(memory, torch.tensor([row])), target, SYMBOLS).log_probability.exp().item()
            )
            costs.append(1 - gleu(words(output.tokens), words(reference)))
        expected += sum(mass * cost for mass, cost in zip(masses, costs, strict=True)) / sum(masses)
    assert 0.2 < expected < 2
    assert found.total.item() == pytest.approx(expected, rel=1e-5)
    assert found.metrics["risk"] == pytest.approx(expected, rel=1e-5)
    assert found.count == 2


def test_gradient_equals_finite_differences():
    model = build_model(("transformer", {}), SMALL).double()
    batch = make_batch([5, 3], [3, 2], SMALL)
    objective = make_objective(every_output, SMALL.target, NoLikelihood(), sharpness=0.7, likelihood_weight=0)
    objective.loss(model, batch).total.backward()
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]
        directional = sum(float((p.grad * d).sum()) for p, d in zip(model.parameters(), direction, strict=True))
        values = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                for parameter, one in zip(model.parameters(), direction, strict=True):
                    parameter.add_(step * one)
                values.append(objective.loss(model, batch).total.item())
        with torch.no_grad():
            for parameter, one in zip(model.parameters(), direction, strict=True):
                parameter.add_(1e-6 * one)
        assert directional == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-9)


def test_mean_gradient_of_samples_approaches_the_exact_gradient():
    """At the model's own probabilities the samples' gradient is, in the mean, that of the expected reward (eq. 8)."""
    model = build_model(("transformer", {}), SMALL)
    batch = make_batch([5], [2], SMALL)

    def gradient(objective):
        model.zero_grad()
        objective.loss(model, batch).total.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    settings = {"likelihood_weight": 0, "include_reference": False, "max_length_factor": 1, "max_length_offset": 0}
    torch.manual_seed(0)
    sampled = gradient(make_objective(None, SMALL.target, samples=1000, sharpness=1, **settings))
    exact = gradient(make_objective(every_output, SMALL.target, sharpness=1, **settings))
    assert exact.norm() > 1e-3
    assert_close(sampled, exact, rtol=1e-4, atol=1e-6)  # a thousand samples have found all seven outputs


def given_outputs(model, batch, settings, symbols):
    """Return outputs of different lengths that depend only on the source; one occurs twice."""
    chosen = []
    for row in batch.source.values.tolist():
        first = 4 + row[0] % 10
        chosen.append([Output((first,) * (1 + row[1] % 5), True), Output((), True), Output((first, 9), False)] * 2)
    return chosen


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_losses_of_batch_parts_add_up(weight):
    batch = make_batch([7, 5, 4, 3], [6, 5, 3, 4])
    objective = make_objective(given_outputs, sharpness=0.5, likelihood_weight=weight)
    results = []
    for parts in ([[0, 1, 2, 3]], [[0, 2], [3], [1]]):
        model = build_model(("transformer", {}))
        found = accumulate(model, objective, [take(batch, rows) for rows in parts], keys=range(len(parts)))
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((gradients, torch.tensor([found.total, found.count, *found.metrics.values()])))
    assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert results[0][1][1] == 4


def test_scoring_batches_do_not_change_the_result(monkeypatch):
    """Scoring with any number of positions per batch."""
    batch = make_batch([7, 5, 4, 3], [6, 5, 3, 4])
    results = []
    for logits in (1 << 25, 23 * 7, 1):
        monkeypatch.setattr(minimum_risk, "MAX_LOGITS", logits)
        model = build_model(("transformer", {})).train()
        accumulate(model, make_objective(given_outputs, sharpness=0.5), [batch], keys=[3])
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert results[0].norm() > 0
    for other in results[1:]:
        assert_close(results[0], other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mixed", [False, True])
def test_recomputed_log_probabilities_equal_stored_ones(mixed):
    """An output layer with dropout: backward must use the dropout mask of forward."""
    layer = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 11))
    outputs, targets = torch.randn(9, 6, requires_grad=True), torch.randint(0, 11, (9,))
    leaves, gradients = [outputs, *layer.parameters()], torch.randn(9)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        torch.manual_seed(0)
        kept = layer(outputs).float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
        torch.manual_seed(0)
        again = RecomputedLogProbabilities.apply(layer, outputs, targets, *layer.parameters())
    torch.manual_seed(5)
    assert_close(again, kept)
    expected, found = (torch.autograd.grad(one, leaves, gradients, retain_graph=True) for one in (kept, again))
    assert_close(found, expected, rtol=2e-2 if mixed else 1e-5, atol=1e-2 if mixed else 1e-6)


def test_scoring_batches_are_bounded_and_complete():
    lengths = [1, 2, 2, 5, 9]
    assert list(batch_by_length(range(5), lengths, 6)) == [[0, 1, 2], [3], [4]]
    assert list(batch_by_length(range(5), lengths, 1000)) == [[0, 1, 2, 3, 4]]


def test_log_probabilities_equal_forced_decoding():
    model = build_model(("transformer", {}))
    batch = make_batch([5, 3], [4, 2])
    objective = make_objective(given_outputs)
    candidates, _ = objective.candidates(batch, given_outputs(None, batch, None, None))
    memory = model.encode(batch.source)
    rows, outputs = [one.row for one in candidates], [one.output for one in candidates]
    found = log_probabilities(model, memory, rows, outputs, SYMBOLS, max_positions=5)
    for one, value in zip(candidates, found, strict=True):
        target = torch.tensor([[*one.output.tokens, *[SYMBOLS.end] * one.output.finished]])
        expected = score(model, select(memory, torch.tensor([one.row])), target, SYMBOLS).log_probability
        assert value.item() == pytest.approx(expected.item(), abs=1e-4)


def test_equal_outputs_and_the_reference_count_once():
    batch = make_batch([5, 3], [4, 2])
    drawn = given_outputs(None, batch, None, None)
    with_it, reward = make_objective(given_outputs).candidates(batch, drawn)
    without, same = make_objective(given_outputs, include_reference=False).candidates(batch, drawn)
    assert (len(with_it), len(without)) == (8, 6)
    assert [one.cost for one in with_it if one.number == 0] == [0, 0]
    assert reward == same  # of what was drawn


def test_reward_is_the_mean_over_all_samples():
    batch = make_batch([5], [3])
    reference = tuple(batch.target[0].tolist()[:-1])
    right, wrong = Output(reference, True), Output((), True)
    _, reward = make_objective().candidates(batch, [[right, right, right, wrong]])
    assert reward == pytest.approx(0.75)


def test_weight_of_the_likelihood():
    model, batch = build_model(("transformer", {})), make_batch([5, 3], [4, 2])
    plain = make_objective(given_outputs, sharpness=0.5, likelihood_weight=0).loss(model, batch)
    mixed = make_objective(given_outputs, sharpness=0.5, likelihood_weight=0.2).loss(model, batch)
    likelihood = Likelihood().loss(model, batch)
    assert mixed.metrics["nll"] == likelihood.metrics["nll"]
    assert plain.metrics["nll"] == pytest.approx(likelihood.metrics["nll"], rel=1e-6)  # on other kernels
    assert mixed.total.item() == pytest.approx(plain.total.item() + 0.5 * 0.2 * likelihood.total.item(), rel=1e-5)


def test_sampling_is_seeded_by_torch_and_restores_module_modes():
    model = build_model(("transformer", {"dropout": 0.5})).train()
    model.target_embedding.eval()
    modes = [module.training for module in model.modules()]
    batch, settings = make_batch([7, 4], [6, 3]), RiskConfig(samples=4)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(sample_outputs(model, batch, settings, SYMBOLS))
    assert drawn[0] == drawn[1] != drawn[2]
    assert [module.training for module in model.modules()] == modes
    assert all(len(some) == 4 for some in drawn[0])
    limits = [math.ceil(1.5 * 6) + 5, math.ceil(1.5 * 3) + 5]
    lengths = [[len(one.tokens) + one.finished for one in some] for some in drawn[0]]
    assert all(max(some) <= limit for some, limit in zip(lengths, limits, strict=True))


def test_dry_run_does_not_depend_on_the_weights():
    batch, settings = make_batch([7, 4, 2], [6, 3, 1]), RiskConfig(samples=3)
    first, second = (
        dry_run_outputs(build_model(("transformer", {}), seed=s), batch, settings, SYMBOLS) for s in (0, 1)
    )
    assert first == second
    assert [[len(one.tokens) for one in some] for some in first] == [[5] * 3, [2] * 3, [0] * 3]
    assert len(set(first[0])) == 3


def test_sampling_under_autocast_keeps_gradients():
    model = build_model(("transformer", {})).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = make_objective(samples=3, sharpness=0.5).loss(model, make_batch([5, 3], [4, 2]))
    loss.total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_training_raises_the_reward():
    """A partly trained copy model improves after some steps with the risk alone."""
    batch = make_batch([4] * 6, [4] * 6)
    batch.target[:, :3] = batch.source.values[:, :3]
    batch.prefix[:, 1:] = batch.target[:, :3]
    model = build_model(("transformer", {})).train()

    def learn(objective, steps, rate):
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        figures = []
        for step in range(steps):
            optimizer.zero_grad()
            figures.append(accumulate(model, objective, [batch], keys=[step]).metrics)
            optimizer.step()
        return figures

    learn(Likelihood(), 25, 5e-3)
    objective = make_objective(samples=8, likelihood_weight=0, include_reference=False, sharpness=0.1)
    rewards = [figures["reward"] / 6 for figures in learn(objective, 40, 1e-3)]
    before, after = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert 0.2 < before < 0.6
    assert after > before + 0.06


@pytest.mark.parametrize(
    ("training", "match"),
    [
        ({"objective": "minimum-risk"}, "needs a trained model"),
        ({"risk": {"samples": 4}}, "risk has no effect"),
        ({"objective": "minimum-risk", "risk": {"samples": 1, "include_reference": False}}, "no gradient"),
        ({"objective": "minimum-risk", "risk": {"reward": "rouge"}}, "gleu"),
        ({"objective": "minimum-risks"}, "minimum-risk"),
    ],
    ids=str,
)
def test_conflicting_settings_are_rejected(training, match):
    with pytest.raises(SaccadeError, match=match):
        resolve_config({"model": {"preset": "transformer-tiny"}, "training": training}, where="test")
