"""Calls of C functions by their structures: stop flag, layout of layers, unsupported levels."""

from __future__ import annotations

import ctypes

import pytest
import torch

from csrc.small_transformer import HEADS, WIDTH, SmallTransformer
from saccade.ops.kernel_abi import Int8Weight
from saccade.ops.kernel_library import kernel


@pytest.mark.parametrize("sentences", [1, 14])
def test_the_stop_flag_ends_a_search(sentences):
    small = SmallTransformer(sentences=sentences, beam=2)
    expected = small.search()
    with pytest.raises(RuntimeError):
        small.search(stop=1)
    assert small.search() == expected


def test_layers_of_one_tensor_or_of_their_own():
    small = SmallTransformer()
    expected = small.step(), small.search(encode=False)
    small.steps, small.kv = [list(torch.stack(step)) for step in small.steps], list(torch.stack(small.kv))
    assert torch.equal(small.step(), expected[0])
    assert small.search(encode=False) == expected[1]


def test_int8_products_are_refused_at_a_level_without_them(kernel_level):
    if kernel_level != "v1":
        pytest.skip("this level has int8 products")
    empty = torch.zeros(WIDTH * HEADS)
    weight = Int8Weight(outputs=1, inputs=1)
    with pytest.raises(RuntimeError):
        kernel("int8_linear", 1, empty.data_ptr(), ctypes.byref(weight), empty.data_ptr())
