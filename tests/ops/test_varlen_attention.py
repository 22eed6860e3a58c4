from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from ops.comparison import outputs_and_gradients
from saccade.layers.masks import padding_mask
from saccade.ops.packed import PackedLayout
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention

pytestmark = pytest.mark.usefixtures("kernel_level", "seeded")

LENGTHS = [[1], [5], [16, 3, 9], [17, 1, 40, 8]]


def layout_of(lengths):
    return PackedLayout.of(padding_mask(torch.tensor(lengths)))


def by_sentence(query, key, value, lengths, memory_lengths, heads, causal):
    """PyTorch's attention, sentence by sentence."""
    parts = []
    for own in zip(query.split(lengths), key.split(memory_lengths), value.split(memory_lengths), strict=True):
        one = [part.view(1, len(part), heads, -1).transpose(1, 2) for part in own]
        parts.append(F.scaled_dot_product_attention(*one, is_causal=causal).transpose(1, 2).flatten(2)[0])
    return torch.cat(parts)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "head"), [(1, 1), (2, 8), (3, 20), (4, 32), (2, 64)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_self_attention(lengths, heads, head, causal):
    width, layout = heads * head, layout_of(lengths)
    qkv, bias = torch.randn(sum(lengths), 3 * width), torch.randn(3 * width)

    def reference(x, b):
        return by_sentence(*(x + b).split(width, 1), lengths, lengths, heads, causal)

    ours = outputs_and_gradients(
        lambda x, b: varlen_self_attention(x, b, layout, heads, causal=causal).context, qkv, bias
    )
    assert_close(ours, outputs_and_gradients(reference, qkv, bias), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("lengths", "memory_lengths"), [*zip(LENGTHS, LENGTHS, strict=True), ([7, 20, 1], [30, 2, 9])], ids=str
)
def test_cross_attention(lengths, memory_lengths):
    heads, width, layouts = 3, 24, (layout_of(lengths), layout_of(memory_lengths))
    leaves = torch.randn(sum(lengths), width), torch.randn(width), torch.randn(sum(memory_lengths), 2 * width)
    leaves = *leaves, torch.randn(2 * width)

    def reference(x, b, memory, c):
        return by_sentence(x + b, *(memory + c).split(width, 1), lengths, memory_lengths, heads, False)

    ours = outputs_and_gradients(lambda *x: varlen_cross_attention(*x, *layouts, heads).context, *leaves)
    assert_close(ours, outputs_and_gradients(reference, *leaves), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_recording_changes_no_context_and_no_gradient(lengths):
    layout, width = layout_of(lengths), 24
    leaves = torch.randn(sum(lengths), 3 * width), torch.randn(3 * width)
    found, expected = (
        outputs_and_gradients(lambda x, b, r=r: varlen_self_attention(x, b, layout, 2, record=r).context, *leaves)
        for r in (True, False)
    )
    assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_scores_of_any_size_stay_finite():
    out = varlen_self_attention(torch.randn(6, 48) * 300, torch.zeros(48), layout_of([6]), 2, causal=True).context
    assert torch.isfinite(out).all()


def test_equal_calls_have_equal_bits():
    """With several threads too: each sums its own rows, then the sums are added in order."""
    x, bias, layout = torch.randn(3000, 96), torch.randn(96), layout_of([10] * 300)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        calls = [
            outputs_and_gradients(lambda a, b: varlen_self_attention(a, b, layout, 2, causal=True).context, x, bias)
            for _ in range(3)
        ]
    finally:
        torch.set_num_threads(before)
    for out, found in calls[1:]:
        assert torch.equal(out, calls[0][0])
        assert all(map(torch.equal, found, calls[0][1]))


def test_no_rows():
    layout = PackedLayout.of(torch.zeros(1, 3, dtype=torch.bool))
    assert varlen_self_attention(torch.zeros(0, 24), torch.zeros(24), layout, 2).context.shape == (0, 8)
