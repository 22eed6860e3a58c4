from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from contracts.registered_models import SIZES, build_model, choice_of, make_batch
from saccade.interface import OutputProjection
from saccade.ops import cross_entropy as op
from saccade.ops.cross_entropy import loss_and_grad
from saccade.ops.dispatch import without_kernels
from saccade.training.objectives.likelihood import Likelihood, cross_entropy


class OutputLayer(nn.Module):
    """Output layer like that of a model, with or without a final matrix product."""

    def __init__(self, bias=True, ends_in_product=True):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 11, bias=bias)
        self.ends_in_product = ends_in_product

    def logits(self, outputs):
        return self.last(self.first(outputs).tanh())

    def output_projection(self, outputs):
        if not self.ends_in_product:
            return None
        return OutputProjection(self.first(outputs).tanh(), self.last.weight, self.last.bias)


def plain(layer, outputs, targets, smoothing):
    return F.cross_entropy(layer.logits(outputs), targets, label_smoothing=smoothing, reduction="sum")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 40, 1 << 20])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_chunked_loss_and_gradients_equal_plain_ones(monkeypatch, native, bias, smoothing, chunk):
    monkeypatch.setattr(op, "CHUNK", chunk)
    torch.manual_seed(0)
    layer = OutputLayer(bias)
    outputs = torch.randn(9, 6, requires_grad=True)
    targets = torch.randint(0, 11, (9,))
    leaves = [outputs, *layer.parameters()]
    expected = plain(layer, outputs, targets, smoothing)
    slow = torch.autograd.grad(expected * 0.37, leaves)
    with contextlib.nullcontext() if native else without_kernels():
        total, negative, _ = cross_entropy(layer, outputs, targets, smoothing)
    fast = torch.autograd.grad(total * 0.37, leaves)
    assert_close(total, expected)
    assert_close(negative.float(), plain(layer, outputs, targets, 0.0))
    assert_close(fast, slow)


def test_output_layer_without_product_has_equal_loss():
    torch.manual_seed(0)
    outputs, targets = torch.randn(9, 6), torch.randint(0, 11, (9,))
    layer = OutputLayer(ends_in_product=False)
    total, negative, _ = cross_entropy(layer, outputs, targets, 0.1)
    assert_close(total, plain(layer, outputs, targets, 0.1))
    assert_close(negative.float(), plain(layer, outputs, targets, 0.0))
    expected = torch.autograd.grad(plain(layer, outputs, targets, 0.1), layer.parameters())
    assert_close(torch.autograd.grad(total, layer.parameters()), expected)


def plain_pairs(layer, outputs, targets, r_drop):
    """Reference loss of pairs with torch's KL divergence."""
    p, q = layer.logits(outputs).log_softmax(-1).chunk(2)
    there, back = (F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((q, p), (p, q)))
    return plain(layer, outputs, targets, 0.1) + r_drop * (there + back) / 2, (there + back) / 2


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
@pytest.mark.parametrize("ends_in_product", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_divergence_of_pairs_and_its_gradient(monkeypatch, native, ends_in_product, chunk):
    monkeypatch.setattr(op, "CHUNK", chunk)
    torch.manual_seed(0)
    layer = OutputLayer(ends_in_product=ends_in_product)
    outputs, targets = torch.randn(14, 6, requires_grad=True), torch.randint(0, 11, (7,)).repeat(2)
    leaves = [outputs, *layer.parameters()]
    expected, apart = plain_pairs(layer, outputs, targets, 2.5)
    with contextlib.nullcontext() if native else without_kernels():
        found = cross_entropy(layer, outputs, targets, 0.1, 2.5)
    assert_close(found.loss, expected)
    assert_close(found.divergence.float(), apart)
    assert_close(torch.autograd.grad(found.loss, leaves), torch.autograd.grad(expected, leaves))


def test_r_drop_runs_every_example_twice():
    batch = make_batch([5, 3], [6, 2])
    model = build_model(("transformer", {"dropout": 0.3}))
    once, both = Likelihood(0.1).loss(model, batch), Likelihood(0.1, r_drop=3.0).loss(model, batch)
    assert both.count == 2 * once.count
    assert_close(both.total, 2 * once.total)  # nothing is dropped in evaluation: two equal answers
    assert both.metrics["divergence"] == pytest.approx(0.0, abs=1e-4)
    model.train()
    torch.manual_seed(1)
    dropped = Likelihood(0.1, r_drop=3.0).loss(model, batch)
    torch.manual_seed(1)
    without = Likelihood(0.1, r_drop=1e-9).loss(model, batch)
    assert dropped.metrics["divergence"] > 0.01
    assert_close(dropped.total - without.total, torch.tensor(1.5 * dropped.metrics["divergence"]), rtol=1e-3, atol=0.0)


def test_padding_does_not_change_the_loss():
    model = build_model(("transformer", {}))
    batch = make_batch([5, 3], [6, 2])
    found = Likelihood(0.1).loss(model, batch)
    assert found.count == 8
    memory = model.encode(batch.source)
    logits = model.logits(model.decode(batch.prefix, memory).outputs)
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(), ignore_index=0, label_smoothing=0.1, reduction="sum"
    )
    assert_close(found.total, expected)


def test_smoothing_is_spread_over_the_vocabulary():
    """Loss = (1 - ε) nll + ε mean over V of -log p, by hand."""
    logits = torch.randn(4, SIZES.target)
    targets = torch.tensor([1, 5, 7, 2])
    logs = logits.log_softmax(-1)
    expected = sum(-0.9 * logs[row, target] - 0.1 * logs[row].mean() for row, target in enumerate(targets))
    of_target, of_all, *_ = loss_and_grad(logits.clone(), targets, 0.1, False)
    assert_close(0.9 * of_target.sum() + 0.1 * of_all.sum(), expected)


def test_without_gradient_only_the_loss_is_computed(monkeypatch):
    model = build_model(("transformer", {}))
    with_gradient = []
    monkeypatch.setattr(op, "loss_and_grad", lambda *given: with_gradient.append(given[3]) or loss_and_grad(*given))
    with torch.no_grad():
        Likelihood().loss(model, make_batch([5, 3], [6, 2]))
    assert with_gradient == [False]


EXPERTS = ("transformer", {"experts": 4, "experts_every": 1, "capacity_factor": 0.5, "balance_weight": 0.25})


def test_auxiliary_loss_is_added_for_every_token():
    model = build_model(EXPERTS).train()
    batch = make_batch([5, 3], [6, 2])
    memory = model.encode(batch.source)
    decoded = model.decode(batch.prefix, memory)
    logits = model.logits(decoded.outputs)
    plain = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=0, reduction="sum")
    auxiliary = memory.auxiliary.loss + decoded.auxiliary.loss
    assert auxiliary > 0.25 * 3  # four layers with a balance near 1 each
    found = Likelihood().loss(model, batch)
    assert found.count == 8
    assert_close(found.total, plain + 8 * auxiliary)
    assert found.metrics == {"nll": pytest.approx(plain.item(), rel=1e-5)}
    router = model.encoder[0].feed_forward.router
    (gradient,) = torch.autograd.grad(found.total, router)
    (without,) = torch.autograd.grad(plain, router)
    assert not torch.allclose(gradient, without)


def test_auxiliary_metrics_are_reported():
    names = choice_of(EXPERTS).config.auxiliary
    objective = Likelihood(0.1, auxiliary=names)
    assert objective.metrics == ("nll", "balance", "dropped", "routed")
    model, batch = build_model(EXPERTS).train(), make_batch([5, 3], [6, 2])
    found = objective.loss(model, batch).metrics
    assert tuple(found) == objective.metrics
    assert found["routed"] == 8 + 8  # real positions of both sides
    assert 0 < found["dropped"] < found["routed"]  # capacity for at most half of the positions
    memory = model.encode(batch.source)
    sides = [memory.auxiliary, model.decode(batch.prefix, memory).auxiliary]
    for name in names:
        assert found[name] == pytest.approx(sum(float(side.sums[name]) for side in sides))


def test_no_auxiliary_loss_in_evaluation():
    model, batch = build_model(EXPERTS), make_batch([5, 3], [6, 2])
    found = Likelihood(auxiliary=("balance", "dropped", "routed")).loss(model, batch)
    assert found.metrics == {"nll": found.metrics["nll"], "balance": 0, "dropped": 0, "routed": 0}
    assert found.total.item() == pytest.approx(found.metrics["nll"], rel=1e-5)
