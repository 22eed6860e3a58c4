"""Feed-forward, residual, embedding, dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from saccade.interface import VocabularySizes
from saccade.layers.embedding import Embedding, OutputLayer, embedding_table, token_embeddings
from saccade.layers.feed_forward import FeedForward
from saccade.layers.positions import sinusoids
from saccade.layers.residual import Residual
from saccade.ops.dropout import dropout


def test_feed_forward_is_equation_2():
    layer = FeedForward(4, 7)
    x = torch.randn(2, 3, 4)
    inner = torch.clamp(x @ layer.expand.weight.T + layer.expand.bias, min=0)
    assert_close(layer(x), inner @ layer.contract.weight.T + layer.contract.bias)


def test_residual_places_the_norm():
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    post, pre = Residual(4, 0.0, "post"), Residual(4, 0.0, "pre")
    assert torch.equal(post.before(x), x)
    assert_close(post.after(x, y), F.layer_norm(x + y, (4,)))
    assert_close(pre.before(x), F.layer_norm(x, (4,)))
    assert_close(pre.after(x, y), x + y)


def test_layer_norm_is_its_formula():
    norm = nn.LayerNorm(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 6)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    assert_close(norm(x), (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias)


def test_embeddings_are_scaled_and_placed():
    table = embedding_table(10, 16)
    layer = Embedding(table, 0.0, "sinusoidal", 64)
    tokens = torch.tensor([[3, 1, 3]])
    assert_close(layer(tokens)[0], table[[3, 1, 3]] * 4 + sinusoids(3, 16))
    assert_close(layer(tokens[:, 1:], first=1)[0], layer(tokens)[0, 1:])


def test_scaled_embeddings_have_unit_variance():
    torch.manual_seed(0)
    assert (embedding_table(1000, 64) * 8).var().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    x = torch.ones(1000, 333, requires_grad=True)
    y = dropout(x, probability, training=True)
    assert (y == 0).float().mean().item() == pytest.approx(probability, abs=0.003)
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # of ones: the gradient is exactly what was kept and scaled


def test_dropout_drops_each_of_the_four_entries_of_a_word_alike():
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


def test_dropout_rests_outside_of_training():
    x = torch.randn(3)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x


def test_other_types_take_the_library_kernel():
    x = torch.ones(1000, dtype=torch.float64)
    assert 0.3 < (dropout(x, 0.5, training=True) == 0).double().mean() < 0.7


def test_a_joint_vocabulary_has_one_table_of_embeddings():
    source, target = token_embeddings(VocabularySizes(10, 10, True), 16, 0.0)
    assert source.table is target.table
    source, target = token_embeddings(VocabularySizes(9, 10, False), 16, 0.0)
    assert source.table.shape == (9, 16)
    assert target.table.shape == (10, 16)


def test_a_tied_output_layer_reads_the_embedding_through_a_map_if_widths_differ():
    table = embedding_table(10, 16)
    x = torch.randn(2, 3, 16)
    same = OutputLayer(16, table, tied=True)
    assert same.table is table
    torch.testing.assert_close(same(x), x @ table.T)
    narrow = OutputLayer(24, table, tied=True)
    assert narrow.table is table
    x = torch.randn(2, 3, 24)
    torch.testing.assert_close(narrow(x), x @ narrow.projection.weight.T @ table.T)
    own = OutputLayer(24, table, tied=False)
    assert own.table.shape == (10, 24)
    torch.testing.assert_close(own(x), x @ own.table.T)
