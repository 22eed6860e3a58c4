from __future__ import annotations

import pytest
import torch

from saccade.ops.arguments import address, row_address


def test_addresses_of_contiguous_tensors_on_the_cpu():
    x = torch.zeros(3, 4)
    assert address(x) == row_address(x) == x.data_ptr()
    assert address(x[1]) == x.data_ptr() + 16
    assert address(None) is None
    assert address(torch.zeros(0, 5)[:, :2]) == row_address(torch.zeros(0, 5)[:, :2])


def test_rows_of_a_wider_tensor():
    x = torch.zeros(3, 4)
    assert row_address(x[:, 1:3]) == x.data_ptr() + 4
    with pytest.raises(ValueError, match="strides"):
        address(x[:, 1:3])


@pytest.mark.parametrize("function", [address, row_address])
def test_tensors_that_a_kernel_cannot_read(function):
    with pytest.raises(ValueError, match="strides"):
        function(torch.zeros(3, 4).t())
    with pytest.raises(ValueError, match="strides"):
        function(torch.zeros(1).expand(3))
    with pytest.raises(TypeError):
        function(torch.zeros(3, device="meta"))
