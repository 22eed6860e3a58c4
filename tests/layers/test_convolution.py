from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from saccade.interface import select
from saccade.layers.convolution import Convolution, Projection, neighbours
from saccade.layers.masks import padding_mask

SETTINGS = [
    {"kernel": 3},
    {"kernel": 1},
    {"kernel": 5, "dilation": 2},
    {"kernel": 3, "causal": True},
    {"kernel": 1, "causal": True},
    {"kernel": 2, "causal": True, "dilation": 4},
    {"kernel": 3, "separable": True},
    {"kernel": 4, "separable": True, "causal": True, "dilation": 2},
    {"kernel": 3, "normalised": True, "causal": True},
    {"kernel": 3, "normalised": True, "separable": True, "causal": True},
]


def make(settings, inputs=4, outputs=6):
    torch.manual_seed(0)
    layer = Convolution(inputs, outputs, **settings)
    torch.nn.init.normal_(layer.projection.bias)
    return layer


def slow(layer, x):
    """The sum over taps, place by place."""
    weight, bias = layer.projection.weight(), layer.projection.bias
    shift = layer.reach if layer.causal else layer.reach // 2
    outputs = torch.zeros(x.size(0), x.size(1), len(bias))
    for row in range(x.size(0)):
        for place in range(x.size(1)):
            total = bias.clone()
            for tap in range(layer.kernel):
                there = place + tap * layer.dilation - shift
                if not 0 <= there < x.size(1):
                    continue
                if layer.depthwise is None:
                    total = total + weight[:, tap * x.size(2) : (tap + 1) * x.size(2)] @ x[row, there]
                else:
                    total = total + weight @ (layer.depthwise[tap] * x[row, there])
            outputs[row, place] = total
    return outputs


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_the_sum_over_its_taps(settings):
    layer, x = make(settings), torch.randn(2, 9, 4)
    assert_close(layer(x), slow(layer, x))


@pytest.mark.parametrize("settings", [one for one in SETTINGS if not one.get("causal")], ids=str)
def test_places_without_padding_are_those_of_padded_zeros(settings):
    layer, x, mask = make(settings), torch.randn(4, 9, 4), padding_mask(torch.tensor([9, 1, 4, 6]))
    whole = layer(x.masked_fill(~mask[:, :, None], 0.0))
    under = neighbours(mask, layer.kernel, layer.dilation)
    assert under.shape == (20, layer.kernel)
    assert_close(layer.projection(layer.gather_rows(x[mask], under)), whole[mask])


@pytest.mark.parametrize(("kernel", "dilation", "causal"), [(3, 1, False), (5, 3, False), (3, 2, True)])
def test_it_is_the_convolution_of_the_library(kernel, dilation, causal):
    layer = make({"kernel": kernel, "dilation": dilation, "causal": causal})
    x = torch.randn(3, 7, 4, requires_grad=True)
    weight = layer.projection.direction.view(6, kernel, 4).transpose(1, 2)
    sides = (layer.reach, 0) if causal else (layer.reach // 2, layer.reach // 2)
    expected = F.conv1d(F.pad(x.transpose(1, 2), sides), weight, layer.projection.bias, dilation=dilation)
    assert_close(layer(x), expected.transpose(1, 2))
    outside = torch.randn(3, 7, 6)
    for one, other in zip(
        torch.autograd.grad((layer(x) * outside).sum(), [x, layer.projection.direction]),
        torch.autograd.grad((expected.transpose(1, 2) * outside).sum(), [x, layer.projection.direction]),
        strict=True,
    ):
        assert_close(one, other)


@pytest.mark.parametrize("settings", [each for each in SETTINGS if each.get("causal")], ids=str)
def test_steps_with_the_recent_inputs_give_the_whole(settings):
    layer, x = make(settings), torch.randn(3, 11, 4)
    whole, recent = layer(x), layer.empty(x)
    assert [part.shape for part in recent] == [(3, 4)] * layer.reach
    for place in range(x.size(1)):
        newest, before = x[:, place], recent
        output, recent = layer.step(newest, before)
        assert_close(output, whole[:, place])
        assert len(recent) == layer.reach
        assert all(kept is old for kept, old in zip(recent, (*before, newest)[1:], strict=True))  # nothing is copied
    rows = torch.tensor([2, 0])
    output, _ = layer.step(x[rows, 0], select(recent, rows))
    assert_close(output, layer.step(x[:, 0], recent)[0][rows])


@pytest.mark.parametrize("settings", [each for each in SETTINGS if each.get("causal")], ids=str)
def test_what_inputs_add_to_later_outputs_gives_the_whole(settings):
    layer, x = make(settings), torch.randn(3, 11, 4)
    whole, pending = layer(x), layer.nothing_pending(x)
    responses = x @ layer.responses(layer.projection.weight()).t()
    for place in range(x.size(1)):
        assert [part.shape for part in pending] == [(3, 6)] * layer.reach
        output, pending = layer.add_step(responses[:, place], pending)
        assert_close(output + layer.projection.bias, whole[:, place])


def test_a_causal_convolution_does_not_see_the_future_and_a_centred_one_sees_as_far_to_both_sides():
    x = torch.randn(1, 11, 4)
    changed = x.clone()
    changed[:, 5] += 1.0
    causal = make({"kernel": 3, "causal": True, "dilation": 2})
    moved = (causal(x) != causal(changed)).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [5, 7, 9]
    centred = make({"kernel": 3, "dilation": 2})
    moved = (centred(x) != centred(changed)).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [3, 5, 7]


def test_an_even_kernel_has_no_middle():
    with pytest.raises(ValueError, match="odd kernel"):
        Convolution(4, 4, 2)


def test_a_normalised_weight_has_rows_of_the_length_of_its_scale():
    torch.manual_seed(0)
    linear = Projection(30, 5, normalised=True)
    assert linear.scale is not None
    with torch.no_grad():
        linear.scale.copy_(torch.arange(1.0, 6.0))
    assert_close(linear.weight().norm(dim=1), torch.arange(1.0, 6.0))
    before = linear.weight().detach().clone()
    with torch.no_grad():
        linear.direction.mul_(3.0)  # only its direction counts
    assert_close(linear.weight().detach(), before)
    library = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(30, 5))
    with torch.no_grad():
        library.parametrizations.weight.original0.copy_(linear.scale[:, None])
        library.parametrizations.weight.original1.copy_(linear.direction)
        library.bias.copy_(linear.bias)
    x = torch.randn(4, 30)
    assert_close(linear(x), library(x))


@pytest.mark.parametrize("settings", [{}, {"normalised": True}, {"separable": True}], ids=str)
@pytest.mark.parametrize("gain", [1.0, 4.0])
def test_the_variance_of_fresh_outputs_is_the_gain(settings, gain):
    torch.manual_seed(0)
    layer = Convolution(128, 256, 3, gain=gain, **settings)
    inside = layer(torch.randn(8, 40, 128))[:, 1:-1]
    assert inside.var().item() == pytest.approx(gain, rel=0.15)


def test_parameters_are_counted():
    def count(**settings):
        return sum(parameter.numel() for parameter in Convolution(10, 20, 3, **settings).parameters())

    assert count() == 3 * 10 * 20 + 20
    assert count(normalised=True) == 3 * 10 * 20 + 20 + 20
    assert count(separable=True) == 3 * 10 + 10 * 20 + 20
