"""The declaration at the end of a model file, read by the registry: model class, config, presets, costs, recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from saccade.config import Config
from saccade.interface import AttentionKind, VocabularySizes

NOTHING: Mapping[str, Any] = MappingProxyType({})


class ModelConfig(Config):
    """The settings that all families have."""

    width: int = Field(512, ge=2)
    """Width of the hidden states, d_model."""

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """The names of the auxiliary sums that the model reports in training, in addition to the objective's."""
        return ()


class Costs(NamedTuple):
    """Complexity of a layer for n positions, width d, kernel k, radius r (Vaswani et al. 2017, table 1)."""

    operations: str  # per layer
    sequential: str  # sequential operations per layer
    path: str  # maximum path length between two positions


class Family(NamedTuple):
    """One paper: model class, config class, presets, and a miniature for the contract tests."""

    paper: str
    model: Callable[[Any, VocabularySizes], Any]
    config: type[ModelConfig]
    presets: Mapping[str, ModelConfig]  # the first one trains in minutes on a small machine
    miniature: ModelConfig
    costs: Costs
    recipe: Mapping[str, Any] = NOTHING  # default settings of a run; the user's settings take precedence
    preset_recipes: Mapping[str, Mapping[str, Any]] = NOTHING  # default settings of a run for single presets
    variants: Sequence[Mapping[str, Any]] = ()  # settings that change the forward pass, for the contract tests
    attention: frozenset[AttentionKind] = frozenset({"cross"})  # the kinds of attention weights that it records
    unordered: Mapping[str, Any] | None = None  # settings that make the encoder permutation-equivariant, if any
    costs_of: Callable[[Any], Costs] | None = None  # if the costs depend on the settings
