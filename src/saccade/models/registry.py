"""The registry of models: one line per paper."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from saccade.config import build, merge
from saccade.errors import SaccadeError, did_you_mean
from saccade.interface import VocabularySizes
from saccade.models.family import Costs, Family, ModelConfig
from saccade.models.outline import MAX_TENSORS, check_memory, outline, skip_init
from saccade.untrusted_files import shown

FAMILIES = {
    "transformer": "saccade.models.transformer",
    "seq2seq": "saccade.models.seq2seq",
    "bahdanau": "saccade.models.bahdanau",
    "luong": "saccade.models.luong",
    "gnmt": "saccade.models.gnmt",
    "deep-att": "saccade.models.deep_att",
    "bytenet": "saccade.models.bytenet",
    "convs2s": "saccade.models.convs2s",
    "lstmn": "saccade.models.lstmn",
}


class Choice(NamedTuple):
    """A model family and its config: with vocabulary sizes, all that is needed to build a model."""

    family: str
    config: ModelConfig

    def build(self, sizes: VocabularySizes) -> Any:
        """Build a model with random weights, if this machine has the memory."""
        self.outline(sizes)
        return self.make(sizes)

    def make(self, sizes: VocabularySizes) -> Any:
        """Build a model with random weights, without the checks of `build`."""
        return load_family(self.family).model(self.config, sizes)

    def make_uninitialized(self, sizes: VocabularySizes) -> Any:
        """Build a model with uninitialized weights, for callers that load all of them."""
        with skip_init():
            return self.make(sizes)

    def outline(self, sizes: VocabularySizes, most: int = MAX_TENSORS) -> nn.Module:
        """Build the model without memory for its weights: names and shapes, or an error if it cannot be built."""
        try:
            found = outline(partial(self.make, sizes), most)
            check_memory(found)
        except ValueError as error:
            raise SaccadeError(str(error), where="model", hint="change its settings, or its vocabulary") from None
        return found

    def costs(self) -> Costs:
        """Return the complexity of its layers."""
        family = load_family(self.family)
        return family.costs if family.costs_of is None else family.costs_of(self.config)

    def dump(self) -> dict[str, Any]:
        """Plain data that `choose` turns back into this choice."""
        return {"family": self.family, **self.config.model_dump(mode="json")}


def load_family(name: str) -> Family:
    """Load a family by name, and import its module."""
    if name not in FAMILIES:
        raise SaccadeError(f"unknown model family '{name}'", hint=did_you_mean(name, FAMILIES))
    family: Family = importlib.import_module(FAMILIES[name]).FAMILY
    return family


def presets() -> dict[str, Choice]:
    """Return the presets of all families."""
    return {preset: Choice(name, config) for name in FAMILIES for preset, config in load_family(name).presets.items()}


def choose(values: Mapping[str, Any], *, where: str = "model") -> Choice:
    """Parse a choice: `{preset: transformer-tiny, dropout: 0.3}` or `{family: transformer, width: 64, …}`."""
    if not isinstance(values, Mapping):
        raise SaccadeError(f"the model cannot be {shown(values)}", where=where, hint="give a preset or a family")
    changes = dict(values)
    preset = changes.pop("preset", None)
    family = changes.pop("family", None)
    base: dict[str, Any] = {}
    if preset is not None:
        known = presets()
        if not isinstance(preset, str) or preset not in known:
            name = shown(preset).strip("'")
            family_presets = load_family(name).presets if name in FAMILIES else ()
            listed = f"'{name}' is a family; its presets: {', '.join(family_presets)}"
            advice = listed if family_presets else did_you_mean(name, known)
            raise SaccadeError(f"unknown preset {shown(preset)}", where=where, hint=advice)
        if family is not None:  # a full family config would silently win over the preset
            raise SaccadeError(
                f"both preset '{preset}' and family {shown(family)} are given", where=where, hint="give one of the two"
            )
        family, base = known[preset].family, known[preset].config.model_dump()
    if family is None:
        raise SaccadeError("no model is named", where=where, hint="give --preset; `saccade models` lists them")
    if not isinstance(family, str) or family not in FAMILIES:
        name = shown(family)
        raise SaccadeError(f"unknown model family {name}", where=where, hint=did_you_mean(name.strip("'"), FAMILIES))
    kind = load_family(family).config
    return Choice(family, build(kind, merge(base, changes), where=where.removesuffix(", model"), prefix="model."))
