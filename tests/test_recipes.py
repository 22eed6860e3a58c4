"""Every recipe loads, and its comments name the data and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.small_models import save_model
from saccade.config import read_yaml
from saccade.errors import SaccadeError
from saccade.training.config_resolution import resolve_recipe

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))


CONTINUED = {path for path in RECIPES if "start" in read_yaml(path)["training"]}


@pytest.mark.parametrize("path", sorted(CONTINUED), ids=lambda path: path.stem)
def test_a_recipe_that_starts_from_a_model_names_its_recipe(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    start = read_yaml(path)["training"]["start"]
    before = path.with_name(f"{Path(start).name}.yaml")
    assert resolve_recipe(before).output == start
    assert f"saccade train recipes/{before.name}" in path.read_text(encoding="utf-8")
    with pytest.raises(SaccadeError, match=start):
        resolve_recipe(path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path, monkeypatch, tmp_path):
    monkeypatch.setenv("SACCADE_DATA", "/somewhere")
    monkeypatch.chdir(tmp_path)
    if path in CONTINUED:
        save_model(tmp_path / read_yaml(path)["training"]["start"])
    config = resolve_recipe(path)
    assert config.data.source
    assert all(path.startswith("/somewhere/") for path in (*config.data.source, *config.data.target))
    assert config.output == f"runs/{path.stem}"
    assert config.training.max_steps or config.training.max_epochs or config.training.max_minutes
    text = path.read_text(encoding="utf-8")
    assert "$SACCADE_DATA" in text
    assert f"saccade train recipes/{path.name}" in text


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} >= {"multi30k", "g2p"}
