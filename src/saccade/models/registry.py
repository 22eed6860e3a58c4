"""The registry: one line a paper."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from saccade.config import build, merge
from saccade.errors import SaccadeError, did_you_mean
from saccade.interface import VocabularySizes
from saccade.models.family import Family, ModelConfig

FAMILIES = {
    "transformer": "saccade.models.transformer",
}


class Choice(NamedTuple):
    """A family and its settings: all that is needed to build a model, but for the vocabulary."""

    family: str
    config: ModelConfig

    def build(self, sizes: VocabularySizes) -> Any:
        """The model with fresh weights."""
        try:
            return load_family(self.family).model(self.config, sizes)
        except ValueError as error:
            raise SaccadeError(str(error), where="model") from None

    def dump(self) -> dict[str, Any]:
        """Plain data that `choose` turns back into this choice."""
        return {"family": self.family, **self.config.model_dump(mode="json")}


def load_family(name: str) -> Family:
    """The family of this name; its module is imported only now."""
    if name not in FAMILIES:
        raise SaccadeError(f"unknown model family '{name}'", do=did_you_mean(name, FAMILIES))
    family: Family = importlib.import_module(FAMILIES[name]).FAMILY
    return family


def presets() -> dict[str, Choice]:
    """Every named size of every family."""
    return {preset: Choice(name, config) for name in FAMILIES for preset, config in load_family(name).presets.items()}


def choose(values: Mapping[str, Any], *, where: str = "model") -> Choice:
    """The choice in `{preset: transformer-tiny, dropout: 0.3}` or `{family: transformer, width: 64, …}`."""
    changes = dict(values)
    preset = changes.pop("preset", None)
    family = changes.pop("family", None)
    base: dict[str, Any] = {}
    if preset is not None:
        known = presets()
        if preset not in known:
            raise SaccadeError(f"unknown preset '{preset}'", where=where, do=did_you_mean(str(preset), known))
        if family is not None:  # a full family config would silently win over the preset
            raise SaccadeError(
                f"both preset '{preset}' and family '{family}' are given", where=where, do="give one of the two"
            )
        family, base = known[preset].family, known[preset].config.model_dump()
    if family is None:
        raise SaccadeError("no model is named", where=where, do="give --preset; `saccade models` lists them")
    return Choice(family, build(load_family(str(family)).config, merge(base, changes), where=where))
