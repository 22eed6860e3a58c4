"""What a translator is made of, from a model folder; the model itself only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.errors import SaccadeError
from saccade.folder import MANIFEST, read_json, verify_while_reading
from saccade.inference.ctranslate2_cache import claims_export
from saccade.interface import Translates
from saccade.model_folder import CARD, CONFIG, GENERATION, WEIGHTS, ModelFolder, load_model_folder, vocabulary_sizes
from saccade.models.family import ModelConfig
from saccade.models.registry import choose

ATTEMPTS = 3  # to read a folder that is replaced meanwhile

Value = TypeVar("Value")


class Deferred(Generic[Value]):
    """Something that is made when it is first asked for, and then kept."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self.make = make
        self.lock = Lock()
        self.made: list[Value] = []

    def __call__(self) -> Value:
        """The value; whoever asks meanwhile in another thread waits for it too."""
        with self.lock:
            if not self.made:
                self.made.append(self.make())
            return self.made[0]


class Parts(NamedTuple):
    """What a translator is made of."""

    config: ModelConfig
    model: Deferred[Translates]
    tokenizers: Tokenizers
    generation: Mapping[str, Any]
    manifest: Mapping[str, Any]  # of the folder: what the model was read from


def open_parts(path: Path, device: torch.device) -> Parts:
    """The parts of a model folder, which is checked as a whole; with a cache of its export, without building the model.

    A cache names the weights and the settings that a model was once built from: they need not be tried again.
    """
    parts = open_beside_export(path, device) if claims_export(path) else None
    if parts is not None:
        return parts
    folder, manifest = load_unchanged(path, device)
    return Parts(folder.choice.config, Deferred(lambda: folder.model), folder.tokenizers, folder.generation, manifest)


def open_beside_export(path: Path, device: torch.device) -> Parts | None:
    """The parts without the model; None if the folder contradicts itself, so that loading it says in which respect."""
    with verify_while_reading(path, CONFIG, WEIGHTS, GENERATION, CARD) as names:
        manifest = read_json(path / MANIFEST)
        config = read_json(path / CONFIG)
        tokenizers = load_tokenizers(path, names)
        generation = read_json(path / GENERATION)
    try:
        choice = choose(config["model"], where=str(path / CONFIG))
    except (SaccadeError, KeyError):
        return None
    if config.get("sizes") != asdict(vocabulary_sizes(tokenizers)):
        return None

    def load() -> Translates:
        folder, found = load_unchanged(path, device)
        if found != manifest:
            raise replaced(path)
        model: Translates = folder.model
        return model

    return Parts(choice.config, Deferred(load), tokenizers, generation, manifest)


def load_unchanged(path: Path, device: torch.device) -> tuple[ModelFolder, Mapping[str, Any]]:
    """A model folder and its manifest, which is of this model and no other: training may be replacing it."""
    for _ in range(ATTEMPTS):
        before = read_json(path / MANIFEST)
        folder = load_model_folder(path, device)
        if read_json(path / MANIFEST) == before:
            return folder, before
    raise replaced(path)


def replaced(path: Path) -> SaccadeError:
    """The error for a folder that is not the one it was."""
    return SaccadeError("was replaced while it was being read", where=str(path), do="try again")
