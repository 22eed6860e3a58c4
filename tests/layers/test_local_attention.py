from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from layers.padded import LargestTensor, run_padded, with_bias
from saccade.errors import SaccadeError
from saccade.layers import local_attention
from saccade.layers.attention import attend
from saccade.layers.local_attention import LocalSelfAttention, local_attend
from saccade.layers.masks import padding_mask, window_mask
from saccade.layers.multi_head import SelfAttention

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def triple(length: int, batch: int = 2, heads: int = 3, width: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(length)
    return [torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3)]


def by_window(query, key, value, radius, mask, causal):
    """The slow, obvious path: all scores, and a mask."""
    visible = window_mask(query.size(2), key.size(2), radius)
    visible = visible if mask is None else visible & mask[:, None, None]
    return attend(query, key, value, visible, causal=causal, record=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("length", "radius"),
    [
        (64, 3),  # divides evenly
        (67, 3),  # does not
        (9, 0),
        (41, 1),
        (5, 20),  # the radius is larger than the sequence
        (24, 8),  # as long as one span
        (25, 8),  # one longer
        (130, 8),
        (1, 2),
    ],
)
def test_local_attention_is_attention_with_a_window_mask(monkeypatch, length, radius, padded, causal):
    monkeypatch.setattr(local_attention, "MIN_BLOCK", 4)
    inputs = triple(length)
    mask = padding_mask(torch.tensor([length, max(1, length // 3)])) if padded else None
    slow = by_window(*inputs, radius, mask, causal)
    fast = local_attend(*inputs, radius, mask, causal=causal)
    assert fast.weights is None
    real = torch.ones_like(slow.context) if mask is None else mask[:, None, :, None].expand_as(slow.context).float()
    assert_close(fast.context * real, slow.context * real, **CLOSE)
    assert fast.context.isfinite().all()  # also where a padding position attends to none of the sentence
    gradient = torch.randn_like(slow.context) * real
    expected = torch.autograd.grad(slow.context, inputs, gradient)
    found = torch.autograd.grad(fast.context, inputs, gradient)
    assert all(part.isfinite().all() for part in found)
    assert_close(found, expected, **CLOSE)
    recorded = local_attend(*inputs, radius, mask, causal=causal, record=True)
    assert_close(recorded.weights, slow.weights)
    assert_close(recorded.context, slow.context, **CLOSE)


def test_padding_between_real_positions_is_not_attended_to():
    inputs = triple(150)
    mask = torch.rand(2, 150) > 0.4
    real = mask[:, None, :, None]
    found, expected = local_attend(*inputs, 5, mask).context, by_window(*inputs, 5, mask, False).context
    assert_close(found * real, expected * real, **CLOSE)


def test_the_default_block_size_changes_nothing():
    inputs = triple(333)
    for radius in (2, 40):
        slow = by_window(*inputs, radius, None, False).context
        assert_close(local_attend(*inputs, radius).context, slow, **CLOSE)


def test_gradients_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(local_attention, "MIN_BLOCK", 2)
    inputs = [part.detach().double().requires_grad_() for part in triple(11, batch=2, heads=1, width=2)]
    mask = padding_mask(torch.tensor([11, 6]))
    assert torch.autograd.gradcheck(lambda *three: local_attend(*three, 2, mask).context, inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_grows_with_the_square_of_the_length(causal):
    length, radius, width, heads = 16384, 16, 16, 2
    block = max(radius, local_attention.MIN_BLOCK)
    torch.manual_seed(0)
    layer = LocalSelfAttention(width, heads, radius)
    x = torch.randn(1, length, width, requires_grad=True)
    with LargestTensor() as largest:
        run_padded(layer, x, causal=causal).values.sum().backward()
    assert x.grad is not None
    assert 0 < largest.entries <= heads * length * 3 * block  # a dense matrix has 50 times as many entries
    with LargestTensor() as dense:
        attend(*triple(300, 1, 1), window_mask(300, 300, radius), record=True)
    assert dense.entries >= 300 * 300  # a dense matrix is noticed


def test_positions_out_of_reach_change_nothing():
    torch.manual_seed(0)
    layer = LocalSelfAttention(8, 2, radius=5).eval()
    x = torch.randn(1, 120, 8)
    changed = x.clone()
    changed[:, 60] += 1.0
    for causal, reached in ((False, range(55, 66)), (True, range(60, 66))):
        before, after = (run_padded(layer, each, causal=causal).values for each in (x, changed))
        assert ((after - before).abs().amax(-1)[0] > 0).nonzero().flatten().tolist() == list(reached)


def test_a_radius_as_long_as_the_sequence_is_full_attention():
    full, local = SelfAttention(8, 2), LocalSelfAttention(8, 2, radius=30)
    local.load_state_dict(full.state_dict())
    x = torch.randn(2, 30, 8)
    for causal in (False, True):
        assert_close(run_padded(local, x, causal=causal).values, run_padded(full, x, causal=causal).values, **CLOSE)


@pytest.mark.usefixtures("grad_mode")
@pytest.mark.parametrize("radius", [0, 1, 4, 50])
def test_steps_equal_causal_attention_with_a_bounded_cache(radius):
    torch.manual_seed(0)
    layer = LocalSelfAttention(8, 2, radius).eval()
    torch.nn.init.normal_(layer.query_key_value.bias)
    x = torch.randn(3, 45, 8)
    full = run_padded(layer, x, causal=True).values
    weights = run_padded(layer, x, causal=True, record=True).weights
    cache = layer.start(3, x)
    for position in range(x.size(1)):
        plain = layer.step(x[:, position], cache).output
        step = layer.step(x[:, position], cache, record=True)
        cache = step.cache
        assert_close(with_bias(plain), full[:, position], **CLOSE)
        assert_close(with_bias(step.output), full[:, position], **CLOSE)
        assert_close(step.output.weights, weights[:, :, position : position + 1, : position + 1], **CLOSE)
        assert cache.position == position + 1
        assert cache.cached == min(position, radius) + 1


def test_recorded_weights_of_padding_positions_sum_to_one():
    layer = LocalSelfAttention(8, 2, radius=1)
    mask = padding_mask(torch.tensor([9, 2]))
    found = run_padded(layer, torch.randn(2, 9, 8), mask, record=True)
    assert_close(found.weights.sum(-1), torch.ones(2, 2, 9))
    assert (found.weights[1, :, :, 2:] == 0).all()
    assert (found.weights[0][:, ~window_mask(9, 9, 1)] == 0).all()


def test_dropout_acts_only_in_training():
    layer = LocalSelfAttention(8, 2, radius=2, dropout=0.5)
    x = torch.randn(1, 80, 8)
    assert not torch.equal(run_padded(layer, x).values, run_padded(layer, x).values)
    layer.eval()
    assert torch.equal(run_padded(layer, x).values, run_padded(layer, x).values)


def test_a_negative_radius_is_refused():
    with pytest.raises(SaccadeError):
        LocalSelfAttention(8, 2, radius=-1)
