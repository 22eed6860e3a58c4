"""Feed-forward, residual, embedding, dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from layers.padded import with_bias
from saccade.interface import VocabularySizes
from saccade.layers.embedding import Embedding, OutputLayer, embedding_table, token_embeddings
from saccade.layers.feed_forward import FeedForward
from saccade.layers.positions import sinusoids
from saccade.layers.residual import Residual, SublayerOutput
from saccade.ops.dropout import dropout


def test_feed_forward_is_equation_2():
    layer = FeedForward(4, 7)
    for linear in (layer.expand, layer.contract):
        nn.init.normal_(linear.bias)
    x = torch.randn(6, 4)
    inner = torch.clamp(x @ layer.expand.weight.T + layer.expand.bias, min=0)
    assert_close(with_bias(layer(x)), inner @ layer.contract.weight.T + layer.contract.bias)


@pytest.mark.usefixtures("grad_mode")
@pytest.mark.parametrize("biased", [True, False])
def test_the_norm_is_after_the_sum_or_before_the_sublayer(biased):
    x, values, bias = torch.randn(6, 4), torch.randn(6, 4), torch.randn(4) if biased else None
    total = x + values + (0 if bias is None else bias)
    post, pre, following = Residual(4, 0.0, "post"), Residual(4, 0.0, "pre"), nn.LayerNorm(4)
    for norm in (post.norm, pre.norm, following):
        nn.init.normal_(norm.weight)
    begun = post.begin(x)
    assert torch.equal(begun.x, x)
    assert torch.equal(begun.normed, x)
    hidden = post(begun, SublayerOutput(values.clone(), bias), following)
    assert_close(hidden.x, post.norm(total))
    assert_close(hidden.normed, post.norm(total))
    begun = pre.begin(x)
    assert torch.equal(begun.x, x)
    assert_close(begun.normed, pre.norm(x))
    hidden = pre(begun, SublayerOutput(values.clone(), bias), following)
    assert_close(hidden.x, total)
    assert_close(hidden.normed, following(total))


def test_residual_dropout_acts_on_the_sublayer_in_training():
    residual, x = Residual(64, 0.5, "pre"), torch.randn(50, 64)
    hidden = residual.begin(x)
    total = residual(hidden, SublayerOutput(torch.ones(50, 64), None), nn.LayerNorm(64)).x
    added = (total - x).round(decimals=3)
    assert sorted(added.unique().tolist()) == [0.0, 2.0]
    total = residual.eval()(hidden, SublayerOutput(torch.ones(50, 64), None), nn.LayerNorm(64)).x
    assert_close(total, x + 1)


def test_layer_norm_is_its_formula():
    norm = nn.LayerNorm(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 6)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    assert_close(norm(x), (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias)


def test_embeddings_are_scaled_and_get_positions():
    table = embedding_table(10, 16)
    layer = Embedding(table, 0.0, "sinusoidal", 64)
    tokens = torch.tensor([[3, 1, 3]])
    assert_close(layer(tokens)[0], table[[3, 1, 3]] * 4 + sinusoids(3, 16))
    assert_close(layer(tokens[:, 1:], first=1)[0], layer(tokens)[0, 1:])


def test_scaled_embeddings_have_unit_variance():
    torch.manual_seed(0)
    assert (embedding_table(1000, 64) * 8).var().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_dropout_has_its_probability_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    x = torch.ones(1000, 333, requires_grad=True)
    y = dropout(x, probability, training=True)
    assert (y == 0).float().mean().item() == pytest.approx(probability, abs=0.003)
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # of ones: the gradient is the output


def test_dropout_drops_each_of_the_four_entries_of_a_random_word_equally():
    torch.manual_seed(0)
    dropped = dropout(torch.ones(40000, 4), 0.3, training=True) == 0
    assert_close(dropped.float().mean(0), torch.full((4,), 0.3), rtol=0, atol=0.01)
    together = torch.corrcoef(dropped.T.float())
    assert_close(together, torch.eye(4), rtol=0, atol=0.02)


def test_dropout_is_decided_by_the_seed():
    x = torch.randn(7, 5)
    torch.manual_seed(3)
    first = dropout(x, 0.5, training=True)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5, training=True), first)
    assert not torch.equal(dropout(x, 0.5, training=True), first)


def test_dropout_is_the_identity_outside_of_training():
    x = torch.randn(3)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x


def test_dropout_of_other_dtypes():
    x = torch.ones(1000, dtype=torch.float64)
    assert 0.3 < (dropout(x, 0.5, training=True) == 0).double().mean() < 0.7


def test_a_joint_vocabulary_has_one_embedding_table():
    source, target = token_embeddings(VocabularySizes(10, 10, True), 16, 0.0)
    assert source.table is target.table
    source, target = token_embeddings(VocabularySizes(9, 10, False), 16, 0.0)
    assert source.table.shape == (9, 16)
    assert target.table.shape == (10, 16)


def test_a_tied_output_layer_projects_to_the_embedding_width_if_widths_differ():
    table = embedding_table(10, 16)
    x = torch.randn(2, 3, 16)
    same = OutputLayer(16, table, tied=True)
    assert same.table is table
    assert_close(same(x), x @ table.T)
    narrow = OutputLayer(24, table, tied=True)
    assert narrow.table is table
    x = torch.randn(2, 3, 24)
    assert_close(narrow(x), x @ narrow.projection.weight.T @ table.T)
    own = OutputLayer(24, table, tied=False)
    assert own.table.shape == (10, 24)
    assert_close(own(x), x @ own.table.T)
