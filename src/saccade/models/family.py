"""What a model file offers to the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from saccade.config import Config
from saccade.interface import VocabularySizes


class ModelConfig(Config):
    """What the settings of all families have in common."""

    width: int = Field(512, ge=2)
    """Width of every layer's input and output, d_model."""


class Family(NamedTuple):
    """One paper: its model, its settings, its named sizes, and one small enough for the laws."""

    paper: str
    model: Callable[[Any, VocabularySizes], Any]
    config: type[ModelConfig]
    presets: Mapping[str, ModelConfig]
    miniature: ModelConfig
