from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from layers.padded import LargestTensor, packed_memory, run_padded, with_bias
from saccade.layers import local_cross_attention
from saccade.layers.attention import attend
from saccade.layers.local_cross_attention import Band, KeysValues, LocalCrossAttention, local_cross_attend
from saccade.layers.masks import padding_mask
from saccade.layers.multi_head import CrossAttention

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
BANDS = [Band(1, 1.0), Band(3, 1.0), Band(3, 0.5), Band(4, 1.7), Band(40, 1.0)]


def inputs_of(target, source, lengths, dtype=torch.float32):
    torch.manual_seed(source)
    query = torch.randn(len(lengths), 2, target, 4, dtype=dtype, requires_grad=True)
    keys, values = (torch.randn(len(lengths), 2, source, 4, dtype=dtype, requires_grad=True) for _ in range(2))
    return [query, keys, values], padding_mask(torch.tensor(lengths), source)


def by_hand(query, keys, values, mask, band):
    """Position by position: the center, clamped to the source, and the positions within the radius."""
    visible = torch.zeros(len(query), query.size(2), keys.size(2), dtype=torch.bool)
    for row, length in enumerate(mask.sum(1).tolist()):
        for position in range(query.size(2)):
            center = min(round(position * band.length_ratio), length - 1)
            visible[row, position, max(0, center - band.radius) : min(length, center + band.radius + 1)] = True
    return attend(query, keys, values, visible[:, None], record=True)


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("target", "source"), [(60, 60), (61, 50), (33, 90), (70, 20), (5, 100), (1, 40)])
def test_local_cross_attention_is_attention_with_a_band_mask(monkeypatch, band, target, source):
    monkeypatch.setattr(local_cross_attention, "MIN_BLOCK", 4)
    inputs, mask = inputs_of(target, source, [source, source // 2, 1])
    slow = by_hand(*inputs, mask, band)
    fast = local_cross_attend(inputs[0], KeysValues(*inputs[1:]), mask, band)
    assert fast.weights is None
    assert_close(fast.context, slow.context, **CLOSE)
    gradient = torch.randn_like(slow.context)
    found, expected = (torch.autograd.grad(each.context, inputs, gradient) for each in (fast, slow))
    assert_close(found, expected, **CLOSE)
    recorded = local_cross_attend(inputs[0], KeysValues(*inputs[1:]), mask, band, record=True)
    assert_close(recorded.weights, slow.weights)


def test_gradients_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(local_cross_attention, "MIN_BLOCK", 2)
    inputs, mask = inputs_of(9, 14, [14, 6], torch.float64)
    band = Band(2, 1.3)
    assert torch.autograd.gradcheck(lambda q, k, v: local_cross_attend(q, KeysValues(k, v), mask, band).context, inputs)


@pytest.mark.usefixtures("grad_mode")
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("record", [False, True])
def test_steps_equal_attention_of_all_positions(band, record):
    torch.manual_seed(0)
    layer = LocalCrossAttention(8, 2, band).eval()
    for projection in (layer.query, layer.key_value, layer.output):
        torch.nn.init.normal_(projection.bias)
    x, memory, mask = torch.randn(2, 50, 8), torch.randn(2, 90, 8), padding_mask(torch.tensor([90, 31]))
    full = run_padded(layer, x, memory=memory, memory_mask=mask, record=record)
    cache = layer.start(*packed_memory(memory, mask))
    hypotheses = x.repeat_interleave(3, 0)  # three equal ones of each sentence
    for position in range(50):
        step = layer.step(hypotheses[:, position], cache, position, record=record)
        assert_close(with_bias(step), full.values[:, position].repeat_interleave(3, 0), **CLOSE)
        if record:
            weights = full.weights[:, :, position : position + 1]
            assert_close(step.weights, weights.repeat_interleave(3, 0), **CLOSE)


def test_a_radius_as_long_as_the_memory_is_full_attention():
    full, local = CrossAttention(8, 2), LocalCrossAttention(8, 2, Band(200, 1.0))
    local.load_state_dict(full.state_dict())
    given = {"memory": torch.randn(2, 40, 8), "memory_mask": padding_mask(torch.tensor([40, 11]))}
    x = torch.randn(2, 30, 8)
    assert_close(run_padded(local, x, **given).values, run_padded(full, x, **given).values, **CLOSE)


def test_nothing_grows_with_the_product_of_both_lengths():
    length, band = 8192, Band(16, 1.0)
    layer = LocalCrossAttention(16, 2, band)
    x, memory = torch.randn(1, length, 16, requires_grad=True), torch.randn(1, length, 16, requires_grad=True)
    with LargestTensor() as largest:
        run_padded(layer, x, memory=memory).values.sum().backward()
    assert 0 < largest.entries <= 5 * 2 * length * 16  # a dense matrix has 25 times as many entries


@pytest.mark.usefixtures("grad_mode")
def test_a_step_does_not_read_the_memory_outside_of_its_band():
    length, layer = 8192, LocalCrossAttention(16, 2, Band(16, 1.0))
    cache, x = layer.start(*packed_memory(torch.randn(1, length, 16))), torch.randn(1, 16)
    with LargestTensor() as largest:
        layer.step(x, cache, 4000)
    assert largest.entries <= length  # the mask of the memory, and nothing else of its length
