from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference.small_models import save_model
from saccade.inference import loading


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On tensors this small a second thread only waits, and for long when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without compiled kernels: there `auto` is CTranslate2."""
    monkeypatch.setattr(loading, "library", lambda: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", {"norm": "pre"})
