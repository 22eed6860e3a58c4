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


class RecurrentStackConfig(ModelConfig):
    """Settings of an encoder and a decoder with the same number of recurrent layers; 4 layers of 1,000 by default."""

    width: int = Field(1000, ge=2)
    """Hidden size of each layer."""
    embedding: int = Field(1000, ge=1)
    """Embedding size."""
    layers: int = Field(4, ge=1)
    """Layers of the encoder and of the decoder, each."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the embeddings and of each layer's output."""
    tie_output: bool = False
    """Tie output layer and target embedding; a linear projection joins them if their widths differ."""


class Costs(NamedTuple):
    """Complexity of a layer for n positions, width d, kernel k, radius r (Vaswani et al. 2017, table 1)."""

    operations: str  # per layer
    sequential: str  # sequential operations per layer
    path: str  # maximum path length between two positions


def inverse_sqrt_training(learning_rate: float, **more: float) -> dict[str, Any]:
    """Return training settings with warmup and inverse square root decay, which suit models of several layers."""
    return {
        "learning_rate": learning_rate,
        "schedule": "inverse-sqrt",
        "warmup_steps": 500,
        "label_smoothing": 0.1,
        **more,
    }


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
    permutation_equivariant_settings: Mapping[str, Any] | None = None  # of the encoder, if there are any
    costs_of: Callable[[Any], Costs] | None = None  # if the costs depend on the settings
