from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from saccade.interface import select
from saccade.layers.convolution import Convolution, Projection, tap_indices
from saccade.layers.masks import padding_mask
from saccade.ops.packed import PackedLayout

SETTINGS = [
    {"kernel": 3},
    {"kernel": 1},
    {"kernel": 5, "dilation": 2},
    {"kernel": 3, "causal": True},
    {"kernel": 1, "causal": True},
    {"kernel": 2, "causal": True, "dilation": 4},
    {"kernel": 3, "separable": True},
    {"kernel": 4, "separable": True, "causal": True, "dilation": 2},
    {"kernel": 3, "normalized": True, "causal": True},
    {"kernel": 3, "normalized": True, "separable": True, "causal": True},
]


def make(settings, inputs=4, outputs=6):
    torch.manual_seed(0)
    layer = Convolution(inputs, outputs, **settings)
    torch.nn.init.normal_(layer.projection.bias)
    return layer


def reference(layer, x):
    """The sum over taps, position by position."""
    weight, bias = layer.projection.weight(), layer.projection.bias
    shift = layer.reach if layer.causal else layer.reach // 2
    outputs = torch.zeros(x.size(0), x.size(1), len(bias))
    for sequence in range(x.size(0)):
        for position in range(x.size(1)):
            total = bias.clone()
            for tap in range(layer.kernel):
                read = position + tap * layer.dilation - shift
                if not 0 <= read < x.size(1):
                    continue
                if layer.depthwise is None:
                    total = total + weight[:, tap * x.size(2) : (tap + 1) * x.size(2)] @ x[sequence, read]
                else:
                    total = total + weight @ (layer.depthwise[tap] * x[sequence, read])
            outputs[sequence, position] = total
    return outputs


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_outputs_are_sums_over_taps(settings):
    layer, x = make(settings), torch.randn(2, 9, 4)
    assert_close(layer(x), reference(layer, x))


MASKS = {
    "padding": padding_mask(torch.tensor([9, 1, 4, 6])),
    "no padding": torch.ones(2, 5, dtype=torch.bool),
    "empty sequences": padding_mask(torch.tensor([0, 7, 0])),
    "only padding": torch.zeros(2, 3, dtype=torch.bool),
    "padding inside": torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) < 0.6,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_packed_sequences_give_the_outputs_and_gradients_of_padded_ones(settings, mask):
    layer, x = make(settings), torch.randn(*mask.shape, 4, requires_grad=True)
    padded = layer(x.masked_fill(~mask[:, :, None], 0.0))[mask]
    layout = PackedLayout.of(mask)
    (indices,) = tap_indices([layer], mask, layout)
    assert indices.shape == (int(mask.sum()), layer.kernel)
    packed = layer.projection(layer.unfold(layout.pack(x), indices))
    assert_close(packed, padded)
    outer = torch.randn_like(padded)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad((padded * outer).sum(), inputs)
    assert_close(torch.autograd.grad((packed * outer).sum(), inputs), expected)


def test_convolutions_of_one_shape_share_their_indices():
    mask = MASKS["padding"]
    first, dilated, last, causal = (
        make(settings) for settings in ({"kernel": 3}, {"kernel": 3, "dilation": 2}, {"kernel": 3}, SETTINGS[3])
    )
    indices = tap_indices([first, dilated, last, causal], mask, PackedLayout.of(mask))
    assert indices[0] is indices[2]
    assert [each[2].tolist() for each in indices] == [[2, 3, 4], [1, 3, 5], [2, 3, 4], [1, 2, 3]]


@pytest.mark.parametrize(("kernel", "dilation", "causal"), [(3, 1, False), (5, 3, False), (3, 2, True)])
def test_outputs_and_gradients_equal_pytorch(kernel, dilation, causal):
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


@pytest.mark.parametrize("settings", [one for one in SETTINGS if one.get("causal")], ids=str)
def test_steps_equal_the_convolution_of_a_sequence(settings):
    layer, x = make(settings), torch.randn(3, 11, 4)
    expected, cache = layer(x), layer.empty_cache(x)
    assert [part.shape for part in cache] == [(3, 4)] * layer.reach
    for position in range(x.size(1)):
        newest, before = x[:, position], cache
        output, cache = layer.step(newest, before)
        assert_close(output, expected[:, position])
        assert len(cache) == layer.reach
        assert all(now is old for now, old in zip(cache, (*before, newest)[1:], strict=True))  # nothing is copied
    sequences = torch.tensor([2, 0])
    output, _ = layer.step(x[sequences, 0], select(cache, sequences))
    assert_close(output, layer.step(x[:, 0], cache)[0][sequences])


def test_receptive_fields_of_causal_and_centered_convolutions():
    x = torch.randn(1, 11, 4)
    changed = x.clone()
    changed[:, 5] += 1.0
    causal = make({"kernel": 3, "causal": True, "dilation": 2})
    affected = (causal(x) != causal(changed)).any(-1)[0]
    assert affected.nonzero().flatten().tolist() == [5, 7, 9]
    centered = make({"kernel": 3, "dilation": 2})
    affected = (centered(x) != centered(changed)).any(-1)[0]
    assert affected.nonzero().flatten().tolist() == [3, 5, 7]


def test_a_centered_convolution_refuses_an_even_kernel():
    with pytest.raises(ValueError, match="odd"):
        Convolution(4, 4, 2)


def test_weight_normalization_equals_pytorch():
    torch.manual_seed(0)
    linear = Projection(30, 5, normalized=True)
    assert linear.scale is not None
    with torch.no_grad():
        linear.scale.copy_(torch.arange(1.0, 6.0))
    assert_close(linear.weight().norm(dim=1), torch.arange(1.0, 6.0))
    before = linear.weight().detach().clone()
    with torch.no_grad():
        linear.direction.mul_(3.0)  # only its direction counts
    assert_close(linear.weight().detach(), before)
    reference = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(30, 5))
    with torch.no_grad():
        reference.parametrizations.weight.original0.copy_(linear.scale[:, None])
        reference.parametrizations.weight.original1.copy_(linear.direction)
        reference.bias.copy_(linear.bias)
    x = torch.randn(4, 30)
    assert_close(linear(x), reference(x))


@pytest.mark.parametrize("settings", [{}, {"normalized": True}, {"separable": True}], ids=str)
@pytest.mark.parametrize("gain", [1.0, 4.0])
def test_initial_output_variance_is_the_gain(settings, gain):
    torch.manual_seed(0)
    layer = Convolution(128, 256, 3, gain=gain, **settings)
    inside = layer(torch.randn(8, 40, 128))[:, 1:-1]
    assert inside.var().item() == pytest.approx(gain, rel=0.15)


def test_number_of_parameters():
    def count(**settings):
        return sum(parameter.numel() for parameter in Convolution(10, 20, 3, **settings).parameters())

    assert count() == 3 * 10 * 20 + 20
    assert count(normalized=True) == 3 * 10 * 20 + 20 + 20
    assert count(separable=True) == 3 * 10 + 10 * 20 + 20
