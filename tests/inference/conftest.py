from __future__ import annotations

from pathlib import Path

import pytest

from inference.small_models import save_model
from saccade.inference import loading


@pytest.fixture(autouse=True)
def always_one_thread(one_thread: int) -> None:
    """Every test of this folder runs with one thread."""


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without compiled kernels: there `auto` is CTranslate2."""
    monkeypatch.setattr(loading, "kernels_in_use", lambda: False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", {"norm": "pre"})
