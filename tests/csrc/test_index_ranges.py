"""C functions return INDEX_OUT_OF_RANGE before they read or write at a wrong index."""

from __future__ import annotations

import pytest
import torch

from csrc.small_transformer import LONGEST, VOCABULARY, SmallTransformer
from saccade.ops.kernel_library import kernel
from saccade.ops.packed import PackedLayout
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention


@pytest.mark.parametrize("bad", [-1, 7, 2**40, -(2**40)])
@pytest.mark.parametrize("name", ["cross_entropy", "paired_cross_entropy", "top_k"])
def test_targets_and_suppressed_tokens_out_of_range(name, bad):
    logits, losses, ids = torch.randn(4, 7), torch.zeros(3, 4), torch.tensor([0, bad, 1, 2])
    kept, found = logits.clone(), torch.zeros(4, 2, dtype=torch.int64)
    columns = [column.data_ptr() for column in losses]
    arguments = {
        "cross_entropy": (4, 7, logits.data_ptr(), ids.data_ptr(), 0.1, True, *columns[:2]),
        "paired_cross_entropy": (2, 7, logits.data_ptr(), ids.data_ptr(), 0.1, 1.0, True, *columns),
        "top_k": (4, 7, logits.data_ptr(), len(ids), ids.data_ptr(), 2, columns[0], found.data_ptr()),
    }
    with pytest.raises(IndexError):
        kernel(name, *arguments[name])
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("index", [-1, VOCABULARY])
@pytest.mark.parametrize("beam", [1, 2])
def test_a_source_token_out_of_range(index, beam):
    small = SmallTransformer(beam=beam)
    expected = small.search()
    kept = small.tokens.clone()
    small.tokens[7] = index
    with pytest.raises(IndexError):
        small.search()
    small.tokens = kept
    assert small.search() == expected


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [
        *(("position_ids", 3, -1), ("position_ids", 3, LONGEST), ("limits", 1, 0), ("limits", 1, -5)),
        *(("suppressed", 0, VOCABULARY), ("suppressed", 0, -1), ("cu_seqlens", 0, -1), ("cu_seqlens", 2, 0)),
    ],
)
def test_an_index_of_a_search_out_of_range(name, position, value):
    small = SmallTransformer()
    getattr(small, name)[position] = value
    with pytest.raises(IndexError):
        small.search()


@pytest.mark.parametrize("call", ["search", "step"])
@pytest.mark.parametrize(("name", "value"), [("first", -1), ("first", 1000), ("counts", -1), ("counts", 1000)])
def test_rows_of_the_memory_out_of_range(name, value, call):
    small = SmallTransformer()
    getattr(small, name)[2] = value
    with pytest.raises(IndexError):
        small.step() if call == "step" else small.search(encode=False)


@pytest.mark.parametrize("origin", [-1, 5])
def test_an_origin_out_of_range(origin):
    small = SmallTransformer(sentences=5)
    small.origin[4, 1] = origin
    with pytest.raises(IndexError):
        small.step()


def test_a_memory_with_too_few_sentences():
    small = SmallTransformer()
    small.first = small.first[:-1].contiguous()
    for call in (small.step, lambda: small.search(encode=False)):
        with pytest.raises(IndexError):
            call()


def test_descending_cu_seqlens_of_the_encoder():
    small = SmallTransformer()
    small.cu_seqlens[1] = 5
    with pytest.raises(IndexError):
        small.encode()


@pytest.mark.parametrize("starts", [[-1, 2, 5], [0, 6, 5], [0, 2, 6], [0, -1, 5], [0, 2, 2**40]])
def test_starts_of_packed_sequences_out_of_range(starts):
    layout, changed = (PackedLayout.of(torch.arange(3) < torch.tensor([[2], [3]])) for _ in range(2))
    qkv, bias = torch.randn(5, 12), torch.randn(12)
    changed.cu_seqlens.copy_(torch.tensor(starts))
    with pytest.raises(IndexError):
        varlen_self_attention(qkv, bias, changed, 2)
    for layouts in ((layout, changed), (changed, layout)):
        with pytest.raises(IndexError):
            varlen_cross_attention(qkv[:, :4], bias[:4], qkv[:, 4:], bias[4:], *layouts, 2)


@pytest.mark.parametrize("limit", [2**60, 2**61, 2**62, 2**63 - 1])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_limit_whose_memory_overflows(limit, beam):
    small = SmallTransformer(beam=beam)
    expected = small.search()
    small.limits[1] = limit
    with pytest.raises(MemoryError):
        small.search()
    small.limits[1] = 6
    assert small.search() == expected
