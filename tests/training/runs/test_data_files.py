"""Advice for data files that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

import saccade
from saccade.data.config import DataConfig
from saccade.errors import SaccadeError
from saccade.training.runs.data_files import check_data_files, moved_data_hint, recipe_hint

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_says_where_its_data_is(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    hint = recipe_hint(path)
    assert "$SACCADE_DATA" in hint
    assert str(tmp_path) in hint
    assert "Data: " in hint
    assert "saccade train" not in hint
    if "multi30k" in path.read_text(encoding="utf-8"):
        assert "https://github.com/multi30k/dataset" in hint


def test_recipe_without_data_names_the_folder_of_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "corpora"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SaccadeError) as refused:
        saccade.train(RECIPES / "multi30k.yaml")
    assert refused.value.where == str(tmp_path / "corpora" / "multi30k" / "train.en")
    assert "https://github.com/multi30k/dataset" in (refused.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_moved_data_is_named_by_its_options(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n")
    data = DataConfig(source=(str(tmp_path / "a"),), target=(str(tmp_path / "b"),), valid_source=str(tmp_path / "c"))
    hint = moved_data_hint(tmp_path / "run", data)
    assert hint.endswith(f"saccade train --resume {tmp_path / 'run'} --data.target NEW --data.valid-source NEW")
    with pytest.raises(SaccadeError) as refused:
        check_data_files(data, hint)
    assert (refused.value.where, refused.value.hint) == (str(tmp_path / "b"), hint)
