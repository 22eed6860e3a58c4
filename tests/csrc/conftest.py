"""Every test here runs on the kernels of every instruction-set level."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_every_kernel_level(kernel_level: str, seeded: None) -> str:
    return kernel_level
