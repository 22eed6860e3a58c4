"""Saccade: train, run and explain attention models.

    saccade.load("runs/x").translate(["a sentence"])
    saccade.train("recipes/multi30k.yaml")

Importing `saccade` is fast: modules that need torch are imported on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saccade.arguments import check_call, check_mapping, path_of
from saccade.version import __version__

if TYPE_CHECKING:
    from os import PathLike

    from saccade.errors import SaccadeError
    from saccade.inference.loading import load
    from saccade.inference.translator import Translator
    from saccade.training.config import RunConfig
    from saccade.training.run import RunResult

__all__ = ["RunConfig", "SaccadeError", "Translator", "__version__", "load", "train"]

MODULES = {
    "RunConfig": "saccade.training.config",
    "SaccadeError": "saccade.errors",
    "Translator": "saccade.inference.translator",
    "load": "saccade.inference.loading",
}

TRAIN_ON = "give the path of a recipe, a dict of settings, or a RunConfig"


@check_call
def train(config: RunConfig | Mapping[str, Any] | str | PathLike[str]) -> RunResult:
    """Train a model from a config, from a mapping of settings, or from the path of a recipe."""
    from saccade.training.config import RunConfig
    from saccade.training.config_resolution import resolve_config, resolve_recipe
    from saccade.training.run import train
    from saccade.training.runs.data_files import check_data_files, recipe_hint

    if isinstance(config, RunConfig):  # may be built by hand, without the defaults of its model family
        config = config.model_dump(exclude_unset=True)
    if isinstance(config, Mapping):
        check_mapping(config, "config", hint=TRAIN_ON)
        return train(resolve_config(config, where="config"))
    recipe = path_of(config, "config", hint=TRAIN_ON)
    resolved = resolve_recipe(recipe)
    check_data_files(resolved.data, recipe_hint(recipe))
    return train(resolved)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'saccade' has no attribute '{name}'")
    return getattr(importlib.import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
