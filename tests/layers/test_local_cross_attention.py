from __future__ import annotations

import pytest
import torch
from test_local_attention import Watch
from torch.testing import assert_close

from saccade.layers import local_cross_attention
from saccade.layers.attention import attend
from saccade.layers.local_cross_attention import Band, LocalCrossAttention, local_cross_attend
from saccade.layers.masks import padding_mask
from saccade.layers.multi_head import CrossAttention, KeysValues

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
BANDS = [Band(1, 1.0), Band(3, 1.0), Band(3, 0.5), Band(4, 1.7), Band(40, 1.0)]


def inputs_of(target, source, lengths, dtype=torch.float32):
    torch.manual_seed(source)
    query = torch.randn(len(lengths), 2, target, 4, dtype=dtype, requires_grad=True)
    keys, values = (torch.randn(len(lengths), 2, source, 4, dtype=dtype, requires_grad=True) for _ in range(2))
    return [query, keys, values], padding_mask(torch.tensor(lengths), source)


def by_hand(query, keys, values, mask, band):
    """Place by place: the centre, clamped to the source, and what is within the radius."""
    seen = torch.zeros(len(query), query.size(2), keys.size(2), dtype=torch.bool)
    for row, length in enumerate(mask.sum(1).tolist()):
        for place in range(query.size(2)):
            centre = min(round(place * band.pace), length - 1)
            seen[row, place, max(0, centre - band.radius) : min(length, centre + band.radius + 1)] = True
    return attend(query, keys, values, seen[:, None], record=True)


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("target", "source"), [(60, 60), (61, 50), (33, 90), (70, 20), (5, 100), (1, 40)])
def test_it_is_attention_with_a_band(monkeypatch, band, target, source):
    monkeypatch.setattr(local_cross_attention, "SMALLEST_BLOCK", 4)
    inputs, mask = inputs_of(target, source, [source, source // 2, 1])
    slow = by_hand(*inputs, mask, band)
    fast = local_cross_attend(inputs[0], KeysValues(*inputs[1:]), mask, band)
    assert fast.weights is None
    assert_close(fast.context, slow.context, **CLOSE)
    slope = torch.randn_like(slow.context)
    assert_close(
        torch.autograd.grad(fast.context, inputs, slope), torch.autograd.grad(slow.context, inputs, slope), **CLOSE
    )
    recorded = local_cross_attend(inputs[0], KeysValues(*inputs[1:]), mask, band, record=True)
    assert_close(recorded.weights, slow.weights)


def test_gradients_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(local_cross_attention, "SMALLEST_BLOCK", 2)
    inputs, mask = inputs_of(9, 14, [14, 6], torch.float64)
    band = Band(2, 1.3)
    assert torch.autograd.gradcheck(lambda q, k, v: local_cross_attend(q, KeysValues(k, v), mask, band).context, inputs)


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("record", [False, True])
def test_steps_are_the_places_of_the_whole(band, record):
    torch.manual_seed(0)
    layer = LocalCrossAttention(8, 2, band).eval()
    x, memory, mask = torch.randn(2, 50, 8), layer.project(torch.randn(2, 90, 8)), padding_mask(torch.tensor([90, 31]))
    whole = layer(x, memory, mask, record=record)
    hypotheses = x[:, :, None].expand(-1, -1, 3, -1)  # all of them alike
    for place in range(50):
        step = layer.step(hypotheses[:, place], memory, mask, place, record=record)
        for one in range(3):
            assert_close(step.context[:, one], whole.context[:, place], **CLOSE)
            if record:
                assert_close(step.weights[:, :, one], whole.weights[:, :, place], **CLOSE)


def test_a_radius_that_reaches_everything_is_full_attention():
    full, local = CrossAttention(8, 2), LocalCrossAttention(8, 2, Band(200, 1.0))
    local.load_state_dict(full.state_dict())
    x, states, mask = torch.randn(2, 30, 8), torch.randn(2, 40, 8), padding_mask(torch.tensor([40, 11]))
    assert_close(local(x, local.project(states), mask).context, full(x, full.project(states), mask).context, **CLOSE)


def test_nothing_grows_with_the_product_of_both_lengths():
    length, band = 8192, Band(16, 1.0)
    layer = LocalCrossAttention(16, 2, band)
    x, states = torch.randn(1, length, 16, requires_grad=True), torch.randn(1, length, 16, requires_grad=True)
    mask = torch.ones(1, length, dtype=torch.bool)
    with Watch() as watch:
        layer(x, layer.project(states), mask).context.sum().backward()
    assert 0 < watch.largest <= 5 * 2 * length * 16  # a dense matrix has 25 times as many entries
    memory = KeysValues(torch.randn(1, 2, length, 8), torch.randn(1, 2, length, 8))
    with Watch() as watch, torch.no_grad():
        layer.step(x[:, :1], memory, mask, 4000)
    assert watch.largest <= length  # the length of the source is counted, and nothing else looks at all of it
