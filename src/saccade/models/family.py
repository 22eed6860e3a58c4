"""What a model file offers to the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from saccade.config import Config
from saccade.interface import AttentionKind, VocabularySizes

NOTHING: Mapping[str, Any] = MappingProxyType({})


class ModelConfig(Config):
    """What the settings of all families have in common."""

    width: int = Field(512, ge=2)
    """Width of the hidden states, d_model."""

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """The names of the sums that the model reports beside the objective's, in training."""
        return ()


class Costs(NamedTuple):
    """What a layer costs as its input grows: n places, width d, kernel k, radius r (Vaswani et al. 2017, table 1)."""

    operations: str  # of a layer
    sequential: str  # operations that must wait for one another, of a layer
    path: str  # the longest way between two places of a sequence


class Family(NamedTuple):
    """One paper: its model, its settings, its named sizes, and a miniature for the contract tests."""

    paper: str
    model: Callable[[Any, VocabularySizes], Any]
    config: type[ModelConfig]
    presets: Mapping[str, ModelConfig]  # the first is the size that a small machine trains in minutes
    miniature: ModelConfig
    costs: Costs
    recipe: Mapping[str, Any] = NOTHING  # settings of a run that suit it; what the user says comes first
    preset_recipes: Mapping[str, Mapping[str, Any]] = NOTHING  # those that suit one of the presets better
    variants: Sequence[Mapping[str, Any]] = ()  # that change the forward pass; contract tests
    attention: frozenset[AttentionKind] = frozenset({"cross"})  # what it records
    unordered: Mapping[str, Any] | None = None  # settings that make the encoder blind to order, if there are such
    costs_of: Callable[[Any], Costs] | None = None  # where settings change the costs
