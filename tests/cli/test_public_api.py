from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import saccade
from saccade.errors import SaccadeError
from saccade.inference.translator import Translator
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_config


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, saccade; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules); print(saccade.load)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "function load" in done.stdout


def test_public_names() -> None:
    assert saccade.Translator is Translator
    assert saccade.RunConfig is RunConfig
    assert saccade.SaccadeError is SaccadeError
    assert set(saccade.__all__) <= set(dir(saccade))
    for name in saccade.__all__:
        assert getattr(saccade, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = saccade.lod


def test_load_translates(run: Path) -> None:
    translator = saccade.load(run)
    assert isinstance(translator.translate("one"), str)
    assert len(translator.translate(["one", "", "two"])) == 3


def test_train_accepts_a_config_a_mapping_or_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[RunConfig] = []

    def train(config: RunConfig) -> Any:
        configs.append(config)
        return SimpleNamespace()

    monkeypatch.setattr("saccade.training.run.train", train)
    values = {"model": {"preset": "transformer-tiny"}, "training": {"max-steps": 3}, "output": "runs/x"}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {preset: transformer-tiny}\ntraining: {max-steps: 3}\noutput: runs/x\n")
    for config in (resolve_config(values, where="test"), values, recipe, str(recipe)):
        saccade.train(config)
    assert all(config == configs[0] for config in configs)
    assert len(configs) == 4
