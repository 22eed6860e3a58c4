"""Every allocation of every kernel fails once: MemoryError, no crash, and the next call works."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch.testing import assert_close

from csrc.small_transformer import SmallTransformer
from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.bias_activation import bias_relu
from saccade.ops.cross_entropy import paired_loss_and_grad
from saccade.ops.int8_linear import QuantizedMatrix, int8_linear, panel_sizes
from saccade.ops.kernel_library import kernel
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.kv_cache_attention import kv_cache_attention, memory_attention
from saccade.ops.layer_norm import residual_layer_norm
from saccade.ops.packed import PackedLayout
from saccade.ops.single_head_attention import single_head_attention
from saccade.ops.top_k import AllowedTokens, top_k
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention


@pytest.fixture(params=[1, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def check(call: Callable[[], object], *, persistently: bool) -> None:
    """Fail one allocation after another until the call succeeds."""
    expected = call()
    for number in count():
        kernel("fail_allocation_after", number, persistently)
        try:
            found = call()
        except MemoryError:
            continue
        finally:
            kernel("fail_allocation_after", -1, False)
        assert number > 0
        assert_close(found, expected, rtol=0, atol=0)
        return


def gradients(function: Callable[..., object], *leaves: torch.Tensor) -> object:
    leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
    out = function(*(leaf * 1.0 for leaf in leaves))
    return torch.autograd.grad(out.sum(), leaves)


def sequences(number: int) -> PackedLayout:
    return PackedLayout.of(torch.arange(30) < (torch.arange(number)[:, None] % 30 + 1))


def self_attention():
    layout, width = sequences(40), 32
    qkv, bias = torch.randn(len(layout.indices), 3 * width), torch.randn(3 * width)
    return lambda: gradients(lambda *x: varlen_self_attention(*x, layout, 2, causal=True).context, qkv, bias)


def cross_attention():
    layout, width = sequences(40), 32
    rows = len(layout.indices)
    leaves = torch.randn(rows, width), torch.randn(width), torch.randn(rows, 2 * width), torch.randn(2 * width)
    return lambda: gradients(lambda *x: varlen_cross_attention(*x, layout, layout, 2).context, *leaves)


@torch.no_grad()
def cache_attention():
    bias, qkv = torch.randn(96), torch.randn(200, 96)
    cache = KVCache.empty(200, qkv)
    for _ in range(5):
        cache = cache.append(qkv, bias)
    return torch.no_grad()(lambda: tuple(kv_cache_attention(qkv, cache, bias, 2, record=True)))


@torch.no_grad()
def attention_to_memory():
    bias = torch.randn(64)
    memory = MemoryCache.of(torch.randn(12, 64), bias, PackedLayout.of(torch.arange(9) < torch.tensor([[3], [9]])))
    given = torch.randn(200, 32), torch.randn(32), memory, bias, 2
    return torch.no_grad()(lambda: tuple(memory_attention(*given, record=True)))


def layer_norm():
    leaves = *torch.randn(2, 300, 64), *torch.randn(3, 64)
    return lambda: gradients(lambda *x: sum(residual_layer_norm(*x, 1e-5)), *leaves)


def rectifier():
    leaves = torch.randn(300, 64), torch.randn(64)
    return lambda: gradients(bias_relu, *leaves)


def paired_losses():
    logits, targets = torch.randn(40, 1000), torch.randint(0, 1000, (20,)).repeat(2)
    return lambda: tuple(paired_loss_and_grad(logits.clone(), targets, 0.1, 1.0, True))


def most_probable():
    logits = torch.randn(40, 1000)
    return lambda: top_k(logits.clone(), 3, [5])


def most_probable_of_allowed():
    logits = torch.randn(40, 1000)
    lists = torch.cat([torch.arange(5), torch.arange(500)])
    allowed = AllowedTokens(torch.arange(40) % 2, torch.tensor([0, 5, 505]), lists)
    return lambda: top_k(logits.clone(), 3, [4, 900], allowed)


def single_head():
    given = torch.randn(50, 2, 32), torch.randn(50, 20, 32), torch.randn(50, 20, 16), torch.rand(50, 20) < 0.5
    return torch.no_grad()(lambda: tuple(single_head_attention(*given)))


def quantization():
    weight, x = torch.randn(300, 64), torch.randn(100, 64)

    @torch.no_grad()
    def call():
        form = QuantizedMatrix(weight)
        return int8_linear(x, form), int8_linear(x[:2], form), argmax_int8(x, form, [3])

    return call


def encoder():
    return SmallTransformer(sentences=40).encode


def int8_encoder():
    return SmallTransformer(sentences=40, int8=True).encode


def decoder_step():
    return SmallTransformer(sentences=130).step


def int8_decoder_step():
    return SmallTransformer(sentences=130, int8=True).step


def greedy_search():
    return SmallTransformer(sentences=14).search


def beam_search():
    return SmallTransformer(sentences=14, beam=3).search


def beam_search_of_one_sentence():
    return SmallTransformer(sentences=1, beam=13).search


def search_of_memory():
    small = SmallTransformer(sentences=14, beam=2)
    return lambda: small.search(encode=False)


def int8_search():
    return SmallTransformer(sentences=14, beam=2, int8=True).search


def int8_argmax_search():
    small = SmallTransformer(sentences=14, int8=True)
    return lambda: small.search(argmax=True)


INT8 = [quantization, int8_encoder, int8_decoder_step, int8_search, int8_argmax_search]
CALLS = [
    *(self_attention, cross_attention, cache_attention, attention_to_memory, layer_norm, rectifier, paired_losses),
    *(most_probable, most_probable_of_allowed, single_head, encoder, decoder_step),
    *(greedy_search, beam_search, beam_search_of_one_sentence, search_of_memory, *INT8),
]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("persistently", [False, True])
@pytest.mark.parametrize("arguments", CALLS, ids=lambda function: function.__name__)
def test_a_failed_allocation_is_a_memory_error(arguments, persistently):
    if arguments in INT8 and not panel_sizes()[0]:
        pytest.skip("no int8 products at this level")
    check(arguments(), persistently=persistently)
