"""Every kernel against torch's own operations, at sizes that fill whole vectors and at sizes that do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from saccade.csrc import library as kernels
from saccade.ops.bias_activation import BiasReluKernel as BiasRelu
from saccade.ops.cross_entropy import loss_and_grad, losses_of, paired_loss_and_grad
from saccade.ops.dropout import LEVELS, dropout
from saccade.ops.dropout import dropout_threshold as levels_of
from saccade.ops.layer_norm import LayerNormKernel as RowNorm
from saccade.ops.layer_norm import ResidualLayerNormKernel as ResidualNorm
from saccade.ops.linear import TransposedLinear as RowProduct
from saccade.ops.packed import PackedLayout
from saccade.ops.top_k import top_k
from saccade.ops.varlen_attention import CrossAttentionKernel as CrossAttend
from saccade.ops.varlen_attention import SelfAttentionKernel as SelfAttend

SHAPES = [(1, 1), (3, 5), (7, 16), (5, 33), (200, 128), (130, 257)]
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def gradients(function, *leaves):
    """What a function gives and its gradients for a random slope, the same for the same shape."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    out = function(*(leaf * 1.0 for leaf in leaves))  # some functions write over what they are given
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return out.detach(), torch.autograd.grad(out, leaves, slope)


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_and_rectifier(shape):
    x, bias = torch.randn(shape), torch.randn(shape[1])
    ours = gradients(lambda a, b: BiasRelu.apply(a, b), x, bias)
    assert_close(ours, gradients(lambda a, b: F.relu(a + b), x, bias), **CLOSE)


@pytest.mark.parametrize("used", ["both", "total", "normal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_residual_sum_and_norm(shape, used):
    x, sublayer = torch.randn(shape) * 3 + 1, torch.randn(shape)
    bias, scale, shift = (torch.randn(shape[1]) for _ in range(3))

    def read(total, normal):
        return {"both": total * 0.5 + normal, "total": total + 0 * normal, "normal": normal}[used]

    def plain(a, b, c, d, e):
        total = a + (b + c)
        return read(total, F.layer_norm(total, shape[1:], d, e, 1e-5))

    def ours(a, b, c, d, e):
        return read(*ResidualNorm.apply(a, b, c, 0.0, d, e, 1e-5))

    leaves = x, sublayer, bias, scale, shift
    if shape[1] == 1:
        return  # a row of one has no deviation: all is rounding
    assert_close(gradients(ours, *leaves), gradients(plain, *leaves), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_residual_sum_with_dropout(shape):
    """The entries that are dropped on the way forward, and no others, have no gradient."""
    x, sublayer, bias = torch.zeros(shape), torch.rand(shape) + 1, torch.rand(shape[1])
    scale, shift = torch.ones(shape[1]), torch.zeros(shape[1])
    out, (of_x, of_sublayer, of_bias) = gradients(
        lambda a, b, c: ResidualNorm.apply(a, b, c, 0.3, scale, shift, 1e-5)[0], x, sublayer, bias
    )
    factor = out / (sublayer + bias)
    assert_close(factor, (factor > 0).float() * LEVELS / (LEVELS - levels_of(0.3)), **CLOSE)
    assert_close(of_sublayer, of_x * factor, **CLOSE)
    assert_close(of_bias, (of_x * factor).sum(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape):
    x, scale, shift = torch.randn(shape) * 3 + 1, torch.randn(shape[1]), torch.randn(shape[1])
    ours = gradients(lambda *leaves: RowNorm.apply(*leaves, 1e-5), x, scale, shift)
    theirs = gradients(lambda a, b, c: F.layer_norm(a, shape[1:], b, c, 1e-5), x, scale, shift)
    if shape[1] > 1:
        assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_product_of_rows():
    x, weight = torch.randn(50, 24), torch.randn(36, 24)
    assert_close(gradients(RowProduct.apply, x, weight), gradients(F.linear, x, weight), **CLOSE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (7, 16), (5, 33), (40, 1000), (9, 8003)])
def test_cross_entropy(shape, smoothing):
    logits, targets = torch.randn(shape) * 4, torch.randint(0, shape[1], shape[:1])
    leaf = logits.clone().requires_grad_()
    of_target, of_all = losses_of(leaf.log_softmax(-1), targets)
    ((1 - smoothing) * of_target + smoothing * of_all).sum().backward()
    ours = loss_and_grad(logits.clone(), targets, smoothing, True)
    assert_close(ours[:3], (of_target.detach(), of_all.detach(), leaf.grad), **CLOSE)
    kept = logits.clone()
    assert_close(loss_and_grad(kept, targets, smoothing, False)[:2], ours[:2], rtol=0, atol=0)
    assert torch.equal(kept, logits)


@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (7, 16), (5, 33), (40, 1000), (9, 8003)])
def test_cross_entropy_of_pairs(shape):
    pairs, width = shape
    logits, targets = torch.randn(2 * pairs, width) * 4, torch.randint(0, width, (pairs,)).repeat(2)
    ours = paired_loss_and_grad(logits.clone(), targets, 0.1, 1.7, True)
    with kernels.without_kernels():
        plain = paired_loss_and_grad(logits.clone(), targets, 0.1, 1.7, True)
    assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    kept = logits.clone()
    found = paired_loss_and_grad(kept, targets, 0.1, 1.7, False)
    assert_close((*found[:2], found[3]), (*ours[:2], ours[3]), rtol=0, atol=0)
    assert torch.equal(kept, logits)


def test_extreme_logits():
    logits = torch.tensor([[0.0, 400.0, -400.0], [1e30, 1e30, 0.0]])
    of_target, _, slope, _ = loss_and_grad(logits.clone(), torch.tensor([2, 1]), 0.0, True)
    assert_close(of_target, torch.tensor([800.0, 0.69314718]))
    assert_close(slope, torch.tensor([[0.0, 1.0, -1.0], [0.5, -0.5, 0.0]]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_hidden(bad):
    logits = torch.zeros(2, 40)
    logits[0, 7] = bad
    of_target, of_all, _, _ = loss_and_grad(logits, torch.tensor([3, 3]), 0.1, True)
    assert not torch.isfinite(of_all[0] + of_target[0])
    assert torch.isfinite(of_all[1] + of_target[1])
    x = torch.zeros(3, 20)
    x[1, 4] = bad
    normal = RowNorm.apply(x, torch.ones(20), torch.zeros(20), 1e-5)
    assert torch.isfinite(normal).all(1).tolist() == [True, False, True]
    assert not torch.isfinite(BiasRelu.apply(x.clone(), torch.zeros(20))[1, 4])


@pytest.mark.parametrize(("rows", "width", "count"), [(1, 1, 1), (3, 5, 5), (4, 40, 3), (7, 257, 10), (30, 8003, 10)])
def test_the_top_k(rows, width, count):
    logits = torch.randn(rows, width) * 3
    never = [0, width - 1] if width > 5 else []
    expected = logits.log_softmax(-1)
    expected[:, never] = -torch.inf
    values, places = top_k(logits.clone(), count, never)
    assert_close(values, expected.topk(count).values, **CLOSE)
    assert_close(expected.gather(1, places), values, **CLOSE)


def test_the_first_of_equals_and_what_is_left_when_nothing_is_left():
    values, places = top_k(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 4, [3])
    assert places.tolist()[0][:3] == [1, 2, 0]
    assert values[0, 3] == -torch.inf
    values, _ = top_k(torch.tensor([[0.0, torch.nan, 1.0]]), 2, [])
    assert not values.isfinite().any()


LENGTHS = [([1], [1]), ([5], [5]), ([16, 3, 9], [16, 3, 9]), ([17, 1, 40, 8], [17, 1, 40, 8])]


def attended(query, key, value, places, memory_places, heads, causal):
    """Sentence by sentence on torch's own attention."""
    parts = []
    for first, last, key_first, key_last in zip(
        places[:-1], places[1:], memory_places[:-1], memory_places[1:], strict=True
    ):
        one = [
            part.view(1, len(part), heads, -1).transpose(1, 2)
            for part in (query[first:last], key[key_first:key_last], value[key_first:key_last])
        ]
        parts.append(F.scaled_dot_product_attention(*one, is_causal=causal).transpose(1, 2).flatten(2)[0])
    return torch.cat(parts)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "head"), [(1, 1), (2, 8), (3, 20), (4, 32), (2, 64)])
@pytest.mark.parametrize(("lengths", "_"), LENGTHS)
def test_self_attention(lengths, _, heads, head, causal):
    width, starts = heads * head, torch.tensor([0, *lengths]).cumsum(0)
    projected, bias = torch.randn(sum(lengths), 3 * width), torch.randn(3 * width)

    def plain(x, b):
        return attended(*(x + b).split(width, 1), starts, starts, heads, causal)

    ours = gradients(lambda x, b: SelfAttend.apply(x, b, starts, heads, causal), projected, bias)
    assert_close(ours, gradients(plain, projected, bias), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("lengths", "memory_lengths"), [*LENGTHS, ([7, 20, 1], [30, 2, 9])])
def test_cross_attention(lengths, memory_lengths):
    heads, width = 3, 24
    starts, memory_starts = torch.tensor([0, *lengths]).cumsum(0), torch.tensor([0, *memory_lengths]).cumsum(0)
    leaves = torch.randn(sum(lengths), width), torch.randn(width), torch.randn(sum(memory_lengths), 2 * width)
    leaves = *leaves, torch.randn(2 * width)

    def plain(x, b, memory, c):
        return attended(x + b, *(memory + c).split(width, 1), starts, memory_starts, heads, False)

    ours = gradients(lambda *given: CrossAttend.apply(*given, starts, memory_starts, heads), *leaves)
    assert_close(ours, gradients(plain, *leaves), rtol=1e-3, atol=1e-4)


def test_attention_to_far_scores_stays_finite():
    starts = torch.tensor([0, 6])
    out = SelfAttend.apply(torch.randn(6, 48) * 300, torch.zeros(48), starts, 2, True)
    assert torch.isfinite(out).all()


def test_padding_goes_and_comes_back():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    places = PackedLayout.of(mask)
    x = torch.randn(3, 3, 4)
    assert places.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert torch.equal(places.pack(x), x[mask])
    assert torch.equal(places.unpack(places.pack(x)), x * mask[:, :, None])


@pytest.mark.parametrize("count", [1, 31, 32, 100, 70_001])
def test_dropout_draws_the_same_on_the_way_back(count):
    x = torch.ones(count, requires_grad=True)
    out = dropout(x, 0.25, training=True)
    out.sum().backward()
    assert torch.equal(out.detach(), x.grad)
    kept = out.detach()[out.detach() > 0]
    assert_close(kept, torch.full_like(kept, 4 / 3))


def test_dropout_is_fair_and_independent():
    x = torch.ones(400, 1000)
    first, second = (dropout(x, 0.3, training=True) > 0 for _ in range(2))
    assert abs(first.float().mean() - 0.7) < 0.003
    assert abs((first & second).float().mean() - 0.49) < 0.004
    assert abs((first[:, 1:] & first[:, :-1]).float().mean() - 0.49) < 0.004
    assert abs((first[:, 16:] & first[:, :-16]).float().mean() - 0.49) < 0.004
    assert abs((first[1:] & first[:-1]).float().mean() - 0.49) < 0.004
    assert (first.float().mean(0) - 0.7).abs().max() < 0.12  # 400 draws a column: five deviations


def test_seeding_torch_seeds_dropout():
    x = torch.ones(1000)
    torch.manual_seed(5)
    first = dropout(x, 0.5, training=True)
    assert not torch.equal(first, dropout(x, 0.5, training=True))
    torch.manual_seed(5)
    assert torch.equal(first, dropout(x, 0.5, training=True))


def test_equal_calls_give_equal_bits():
    """Also with several threads: each sums its own rows, then the sums are added in order."""
    x, bias, starts = torch.randn(3000, 96), torch.randn(96), torch.arange(0, 3001, 10)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        calls = [gradients(lambda a, b: SelfAttend.apply(a, b, starts, 2, True), x, bias) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    for out, found in calls[1:]:
        assert torch.equal(out, calls[0][0])
        assert all(map(torch.equal, found, calls[0][1]))


def test_no_rows():
    empty, bias = torch.zeros(0, 8), torch.zeros(8)
    assert BiasRelu.apply(empty.clone(), bias).shape == (0, 8)
    assert RowNorm.apply(empty, bias, bias, 1e-5).shape == (0, 8)
    starts = torch.tensor([0, 0])
    assert SelfAttend.apply(torch.zeros(0, 24), torch.zeros(24), starts, 2, False).shape == (0, 8)


def test_other_tensors_are_left_to_torch():
    assert kernels.usable(torch.zeros(1))
    assert not kernels.usable(torch.zeros(1, dtype=torch.float64))
    assert not kernels.usable(torch.zeros(1, device="meta"))
    with kernels.without_kernels():
        assert not kernels.usable(torch.zeros(1))
    with torch.autocast("cpu"):
        assert not kernels.usable(torch.zeros(1))


def test_a_norm_of_torch_gives_its_settings():
    norm = nn.LayerNorm(12, eps=0.5)
    x = torch.randn(4, 12)
    assert_close(RowNorm.apply(x, norm.weight, norm.bias, norm.eps), norm(x))
