"""Weights of the trained model that a run starts from (fine-tuning).

The config and the checkpoints of a run contain all that it took from the start model; the folder of that model is read
again only if the run must begin again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from saccade.errors import SaccadeError
from saccade.folder import MANIFEST, damaged, json_text, read_json, replace_file
from saccade.model_folder import (
    WEIGHTS,
    ModelFolder,
    TensorSpec,
    copy_weights,
    load_model_folder,
    named_weights,
    vocabulary_sizes,
    weights_of,
)
from saccade.models.registry import Choice
from saccade.training.checkpoints.start_settings import find_start_folder


class StartModel(NamedTuple):
    """A trained model to start from."""

    path: str
    folder: ModelFolder


def load_start_model(path: str, choice: Choice) -> StartModel:
    """Load and verify the start model; its weights must have the shapes of a model with these settings."""
    folder = load_model_folder(find_start_folder(path))
    sizes = vocabulary_sizes(folder.tokenizers)
    if folder.choice.family != choice.family or weight_specs(choice.outline(sizes)) != weight_specs(folder.model):
        raise SaccadeError(
            f"weights do not fit the changed model: {', '.join(changed_settings(folder.choice, choice))}",
            where=path,
            hint="change only settings that keep the shapes of all weights, such as dropout",
        )
    return StartModel(path, folder)


def load_recorded_start(path: str, choice: Choice, record: Path | None) -> StartModel:
    """Load the start model and record its digest in the file `record`; a recorded digest must match."""
    digest = weights_digest(path)
    if record is not None and record.exists() and read_json(record).get("weights") != digest:
        raise SaccadeError(
            "the start model has changed since the run began",
            where=path,
            hint="restore it, or start a new run with another --output",
        )
    start = load_start_model(path, choice)
    if record is not None:
        replace_file(record, json_text({"folder": path, "weights": digest}))
    return start


def copy_start_weights(model: Any, start: StartModel | None, choice: Choice) -> list[str]:
    """Copy the weights of the start model, if any, into a model; return log messages."""
    if start is None:
        return []
    copy_weights(model, weights_of(start.folder.model), Path(start.path))
    return [
        f"starts from {start.path}",
        *(f"changed: {change}" for change in changed_settings(start.folder.choice, choice)),
    ]


def changed_settings(before: Choice, after: Choice) -> list[str]:
    """Describe the settings in which a model differs from its start model."""
    old, new = before.dump(), after.dump()
    return [
        f"model.{name} {old.get(name)} -> {new.get(name)}".replace("_", "-")
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def weight_specs(model: Any) -> dict[str, TensorSpec]:
    """Return shape and dtype of every weight by name."""
    return {name: TensorSpec.of(tensor) for name, tensor in named_weights(model).items()}


def weights_digest(start: str) -> str:
    """Return the SHA-256 of the start model's weights from its manifest."""
    folder = find_start_folder(start)
    try:
        return str(read_json(folder / MANIFEST)["files"][WEIGHTS]["sha256"])
    except (KeyError, TypeError):
        raise damaged(folder / MANIFEST, "does not list the weights") from None
