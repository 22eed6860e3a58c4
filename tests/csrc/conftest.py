"""Every test here runs on the kernels of every level."""

from __future__ import annotations

import pytest
import torch

from saccade.csrc import library as kernels


@pytest.fixture(params=kernels.found_levels() or [None], autouse=True)
def level(request, monkeypatch):
    """The kernels of every level that is compiled and that this processor can run."""
    if request.param is None:
        pytest.skip("the kernels are not compiled: no C compiler when the package was installed")
    library = kernels.load(request.param)
    assert library is not None
    monkeypatch.setattr(kernels, "library", lambda: library)
    return request.param


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
