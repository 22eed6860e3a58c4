"""Recording figures instead of saving them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def record_figures(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[Any]:
    """Replace `save_figure` of a module; return the list that its figures are appended to."""
    figures: list[Any] = []
    monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    return figures
