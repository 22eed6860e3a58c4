from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from saccade.layers.attention import (
    additive_scores,
    attend,
    bilinear_scores,
    dot_scores,
    scaled_dot_scores,
    weighted_sum,
)
from saccade.layers.masks import causal_mask, padding_mask, window_mask
from saccade.ops.attention_reference import masked_softmax


@pytest.fixture
def triple():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)


def by_hand(score, queries, keys):
    """Scores one pair at a time."""
    rows = [torch.stack([score(query, key) for key in keys]) for query in queries]
    return torch.stack(rows)


def test_scores_are_their_formulas(triple):
    query, key = triple[0][0, 0], triple[1][0, 0]
    vector, matrix = torch.randn(8), torch.randn(8, 8)
    assert_close(dot_scores(query, key), by_hand(lambda q, k: q.dot(k), query, key))
    assert_close(scaled_dot_scores(query, key), by_hand(lambda q, k: q.dot(k) / math.sqrt(8), query, key))
    assert_close(bilinear_scores(query, key, matrix), by_hand(lambda q, k: q @ matrix @ k, query, key))
    expected = by_hand(lambda q, k: vector.dot(torch.tanh(q + k)), query, key)
    assert_close(additive_scores(query, key, vector), expected)


@pytest.mark.parametrize("width", [16, 64, 256])
def test_scaling_keeps_the_variance_of_a_dot_product_at_one(width):
    torch.manual_seed(width)
    query, key = torch.randn(2000, width), torch.randn(2000, width)
    plain, scaled = dot_scores(query, key).var(), scaled_dot_scores(query, key).var()
    assert_close(plain.item(), float(width), rtol=0.05, atol=0)
    assert_close(scaled.item(), 1.0, rtol=0.05, atol=0)


def test_without_scaling_the_softmax_saturates_and_its_gradient_vanishes():
    """The reason that Vaswani et al. give for the scale (section 3.2.1)."""
    torch.manual_seed(0)
    sizes = {}
    for name, score in (("plain", dot_scores), ("scaled", scaled_dot_scores)):
        query = torch.randn(64, 512, requires_grad=True)
        weights = masked_softmax(score(query, torch.randn(16, 512)), None)
        gradient = weights * (1 - weights)  # d softmax_i / d score_i
        sizes[name] = gradient.mean().item()
    assert sizes["plain"] < sizes["scaled"] / 5


def test_masked_softmax_is_a_softmax_over_the_set(triple):
    scores = torch.randn(3, 5)
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    weights = masked_softmax(scores, mask)
    assert_close(weights[0, mask[0]], scores[0, mask[0]].softmax(-1))
    assert (weights[~mask] == 0).all()
    assert_close(weights[1], scores[1].softmax(-1))
    assert (weights[2] == 0).all()


def test_an_empty_row_has_no_nan_in_its_gradient():
    scores = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    masked_softmax(scores, mask).sum().backward()
    assert torch.isfinite(scores.grad).all()


def masks(queries, keys):
    padding = padding_mask(torch.tensor([keys, keys - 2]))[:, None, None]
    return {"none": None, "padding": padding, "window": window_mask(queries, keys, 2)}


@pytest.mark.parametrize("kind", ["none", "padding", "window"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_explicit_path_equals_the_fused_path_forward_and_backward(kind, causal):
    torch.manual_seed(1)
    tensors = [torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3)]
    mask = masks(5, 5)[kind]
    fast = attend(*tensors, mask, causal=causal)
    fast_gradients = torch.autograd.grad(fast.context.square().sum(), tensors)
    slow = attend(*tensors, mask, causal=causal, record=True)
    slow_gradients = torch.autograd.grad(slow.context.square().sum(), tensors)
    assert fast.weights is None
    assert_close(slow.context, fast.context)
    assert_close(slow_gradients, fast_gradients, rtol=1e-4, atol=1e-5)
    assert_close(weighted_sum(slow.weights, tensors[2]), slow.context)


@pytest.mark.parametrize("queries", [1, 3])
def test_fewer_queries_than_keys_are_the_last_ones_on_both_paths(queries):
    tensors = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    full = attend(*tensors, causal=True).context[..., -queries:, :]
    query = tensors[0][..., -queries:, :]
    assert_close(attend(query, *tensors[1:], causal=True).context, full)
    assert_close(attend(query, *tensors[1:], causal=True, record=True).context, full)


def test_attend_takes_any_score(triple):
    query, key, value = triple
    found = attend(query, key, value, score=dot_scores)
    assert_close(found.context, (query @ key.transpose(-1, -2)).softmax(-1) @ value)


def test_attention_is_a_function_of_a_set(triple):
    query, key, value = triple
    order = torch.randperm(key.size(-2))
    assert_close(attend(query, key[..., order, :], value[..., order, :]).context, attend(query, key, value).context)


def test_causal_mask_is_a_triangle_that_ends_at_the_last_key():
    assert causal_mask(3, 3).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(1, 4).all()
    assert causal_mask(2, 4).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("radius", [0, 1, 3])
def test_window_mask_is_the_neighborhood(radius):
    mask = window_mask(6, 6, radius)
    for query in range(6):
        for key in range(6):
            assert mask[query, key] == (abs(query - key) <= radius)


def test_padding_mask():
    assert padding_mask(torch.tensor([2, 0]), 3).tolist() == [[1, 1, 0], [0, 0, 0]]
