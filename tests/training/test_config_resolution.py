from __future__ import annotations

from pathlib import Path

import pytest

from saccade.config import write_yaml
from saccade.errors import SaccadeError
from saccade.training.config_resolution import (
    check_complete,
    load_saved_config,
    resolve_config,
    resolve_recipe,
    resolve_resumed,
)

MODEL = {"preset": "transformer-tiny"}
FILES = {"source": "a.en", "target": "a.de", "valid-source": "v.en", "valid-target": "v.de"}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_resolved_config_has_absolute_paths_and_all_model_settings(tmp_path: Path) -> None:
    config = resolve_config({"model": MODEL, "data": FILES}, where="test")
    assert config.data.source == (str(tmp_path / "a.en"),)
    assert config.data.target == (str(tmp_path / "a.de"),)
    assert (config.data.valid_source, config.data.valid_target) == (str(tmp_path / "v.en"), str(tmp_path / "v.de"))
    assert config.model == config.choice().dump()


def test_inspected_config_differs_only_in_its_paths() -> None:
    values = {"model": MODEL, "data": FILES}
    as_given = resolve_config(values, where="test", absolute_paths=False)
    assert (as_given.data.source, as_given.data.valid_target) == (("a.en",), "v.de")
    assert resolve_config(as_given.model_dump(), where="again") == resolve_config(values, where="test")


def test_saved_config_is_the_resolved_config(tmp_path: Path) -> None:
    config = resolve_config({"model": MODEL, "data": FILES, "output": "x"}, where="test")
    write_yaml(config, tmp_path / "config.yaml")
    assert load_saved_config(tmp_path / "config.yaml") == config
    assert resolve_resumed(tmp_path).before == config
    resumed = resolve_resumed(tmp_path, {"training": {"max-steps": "7"}, "data": {"source": "b.en"}})
    assert resumed.config.training.max_steps == 7
    assert resumed.config.data.source == (str(tmp_path / "b.en"),)
    assert resumed.config.output == str(tmp_path)


def test_recipe_is_above_defaults_and_below_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCADE_DATA", "corpora")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {preset: transformer-tiny}\ndata: {source: [a.tsv, b.tsv]}\ntraining: {seed: 2}\n")
    defaults = {"training": {"seed": 1, "samples": 1}, "output": "x"}
    config = resolve_recipe(recipe, {"training": {"seed": 3}}, defaults=defaults)
    assert (config.training.seed, config.training.samples, config.output) == (3, 1, "x")
    assert config.data.source == tuple(str(tmp_path / "corpora" / name) for name in ("a.tsv", "b.tsv"))
    assert resolve_recipe(recipe, defaults=defaults).training.seed == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {}},
        {"output": None},
        {"training": {"patience": 3}, "data": {"source": "a.tsv"}},
        {"training": {"metrics": ["blue"]}},
    ],
    ids=str,
)
def test_incomplete_config_is_rejected(changes: dict[str, object]) -> None:
    values = {"model": MODEL, "data": FILES, "output": "x"}
    check_complete(resolve_config(values, where="test"))
    with pytest.raises(SaccadeError):
        check_complete(resolve_config({**values, **changes}, where="test"))
