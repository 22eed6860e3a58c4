"""Wrong calls of the Python API: each raises SaccadeError with advice, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from table import rows

import saccade
from saccade.errors import SaccadeError

EXPRESSIONS = rows("api.txt")


@pytest.fixture(scope="module")
def translator(workspace: Path) -> saccade.Translator:
    """A translator of the good model."""
    return saccade.load("model", "cpu")


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row, marks=() if row.startswith("*") else pytest.mark.slow) for row in EXPRESSIONS]
)
def test_wrong_call(row: str, translator: saccade.Translator, unchanged: list[str], time_limit: None) -> None:
    names = {"load": saccade.load, "train": saccade.train, "translator": translator}
    with pytest.raises(SaccadeError) as caught:
        eval(row.removeprefix("*"), names)
    assert caught.value.what
    assert caught.value.hint
    assert "\n" not in caught.value.what
