"""Every shipped recipe loads, and names data that its comment tells how to get."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.training.config import read_recipe

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path, monkeypatch):
    monkeypatch.setenv("SACCADE_DATA", "/somewhere")
    config = read_recipe(path)
    assert config.data.source
    assert all(path.startswith("/somewhere/") for path in (*config.data.source, *config.data.target))
    assert config.output == f"runs/{path.stem}"
    assert config.training.max_steps or config.training.max_epochs or config.training.max_minutes
    text = path.read_text(encoding="utf-8")
    assert "$SACCADE_DATA" in text
    assert f"saccade train recipes/{path.name}" in text


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} >= {"multi30k", "g2p"}
