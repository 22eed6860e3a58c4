from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from saccade.interface import reorder
from saccade.layers.masks import padding_mask
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.kv_cache_attention import Window, kv_cache_attention, memory_attention
from saccade.ops.packed import PackedLayout

pytestmark = [
    pytest.mark.usefixtures("kernel_level", "seeded", "threads"),
    pytest.mark.parametrize("threads", [1, 3], ids="{} threads".format, indirect=True),
]

SHAPES = [(1, 1), (3, 20), (2, 64)]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(("heads", "head"), SHAPES)
@torch.no_grad()
def test_a_cache_of_hypotheses_that_search_reorders(heads, head, record, window):
    """The kernel follows the rows of earlier steps; the reference concatenates and copies keys and values."""
    width = heads * head
    bias, projected = torch.randn(3 * width), torch.randn(6, 7, 3 * width)
    orders = torch.randint(7, (6, 7))

    def steps():
        cache, found = KVCache.empty(7, projected[..., :width]), []
        for qkv, order in zip(projected, orders, strict=True):
            cache = cache.append(qkv, bias, window)
            found.append(kv_cache_attention(qkv, cache, bias, heads, record=record))
            cache = reorder(cache, order, None)
        return found, cache.position, cache.cached

    ours, reference = kernel_and_reference(steps)
    assert_close(ours[0], reference[0], **CLOSE)
    assert ours[1:] == reference[1:] == (6, 6 if window is None else window)


@pytest.mark.parametrize("beam", [1, 3, 40])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(("heads", "head"), SHAPES)
@torch.no_grad()
def test_the_memory_of_several_sentences(heads, head, record, windowed, beam):
    width, lengths = heads * head, torch.tensor([5, 1, 9])
    query, query_bias = torch.randn(3 * beam, width), torch.randn(width)
    kv, kv_bias = torch.randn(15, 2 * width), torch.randn(2 * width)
    window = Window(torch.tensor([2, 0, 6]), torch.tensor([3, 1, 2]), 3) if windowed else None

    def attend():
        memory = MemoryCache.of(kv, kv_bias, PackedLayout.of(padding_mask(lengths)))
        return memory_attention(query, query_bias, memory, kv_bias, heads, window=window, record=record)

    ours, reference = kernel_and_reference(attend)
    assert_close(ours, reference, **CLOSE)
    assert (ours.weights is None) != record


@torch.no_grad()
def test_a_memory_with_padding_between_real_positions():
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    kv, kv_bias, query = torch.randn(4, 16), torch.randn(16), torch.randn(4, 8)

    def attend(mask):
        memory = MemoryCache.of(kv, kv_bias, PackedLayout.of(mask))
        return memory_attention(query, torch.zeros(8), memory, kv_bias, 2).context

    ours, reference = kernel_and_reference(lambda: attend(mask))
    assert_close(ours, reference, **CLOSE)
    assert_close(ours, attend(padding_mask(torch.tensor([3, 1]))), **CLOSE)
