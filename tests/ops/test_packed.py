from __future__ import annotations

import pytest
import torch

from saccade.ops.packed import PackedLayout

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


def test_unpack_undoes_pack():
    layout, x = PackedLayout.of(MASK), torch.randn(3, 3, 4)
    assert layout.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert (layout.total, layout.longest) == (6, 3)
    assert torch.equal(layout.pack(x), x[MASK])
    assert torch.equal(layout.unpack(layout.pack(x)), x * MASK[:, :, None])
    assert layout.positions().tolist() == [0, 1, 0, 0, 1, 2]


@pytest.mark.parametrize("mask", [MASK.byte() * 255, MASK.int(), MASK[0], MASK[None]])
def test_only_boolean_masks_of_a_batch_have_a_layout(mask):
    with pytest.raises(TypeError):
        PackedLayout.of(mask)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3), (4, 3)])
def test_values_of_another_shape_than_the_mask_are_refused(shape):
    with pytest.raises(ValueError, match="mask"):
        PackedLayout.of(MASK).pack(torch.zeros(*shape, 2))


def test_a_layout_with_padding_keeps_all_positions():
    layout, x = PackedLayout(torch.arange(4) * 3, None, MASK), torch.randn(3, 3, 4)
    assert (layout.total, layout.longest) == (9, 3)
    assert torch.equal(layout.unpack(layout.pack(x)), x * MASK[:, :, None])
    assert layout.positions().tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cu_seqlens": torch.tensor([0, 2, 3])}, ValueError),
        ({"cu_seqlens": torch.tensor([0, 2, 3, 7])}, ValueError),
        ({"cu_seqlens": torch.tensor([1, 2, 3, 6])}, ValueError),
        ({"cu_seqlens": torch.tensor([0, 3, 2, 6])}, ValueError),
        ({"cu_seqlens": torch.tensor([0, 0, 2, 6])}, ValueError),  # the last sequence has four positions of three
        ({"cu_seqlens": torch.tensor([0, 2, 3, 6], dtype=torch.int32)}, TypeError),
        ({"indices": torch.tensor([0, 1, 3, 6, 7, 9])}, ValueError),
        ({"indices": torch.tensor([-1, 1, 3, 6, 7, 8])}, ValueError),
        ({"indices": torch.tensor([0, 1, 3, 6, 7])}, ValueError),
        ({"indices": torch.tensor([0, 1, 3, 6, 8, 7])}, ValueError),  # in range, but not the positions of the mask
        ({"cu_seqlens": torch.tensor([0, 1, 3, 6])}, ValueError),
        ({"mask": MASK.flip(0)}, ValueError),
        ({"indices": torch.tensor([0.0, 1, 3, 6, 7, 8])}, TypeError),
        ({"mask": MASK.int()}, TypeError),
        ({"mask": MASK[0]}, ValueError),
        ({"mask": MASK[:2]}, ValueError),
    ],
)
def test_layouts_that_do_not_match_their_mask_are_refused(changes, error):
    valid = PackedLayout.of(MASK)
    with pytest.raises(error):
        PackedLayout(**{"cu_seqlens": valid.cu_seqlens, "indices": valid.indices, "mask": MASK, **changes})
