"""Small valid folders, written by Saccade, which the crafted inputs change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from contracts.registered_models import build_model, choice_of
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.folder import MANIFEST, describe_file, write_json
from saccade.model_folder import ModelFolder, save_model_folder, vocabulary_sizes, weights_of
from saccade.training.checkpoints.checkpoint import (
    Snapshot,
    TrainingState,
    find_newest_intact,
    load_checkpoint,
    optimizer_tensors,
    write_checkpoint,
)
from saccade.training.config import TrainingConfig
from saccade.training.loop import Progress
from saccade.training.optimizers import make_optimizer

SUBJECT = ("transformer", {"encoder_layers": 1, "decoder_layers": 1})
SOURCES = ["ein kleiner Hund", "eine große Katze", "der Hund und die Katze"] * 3
TARGETS = ["a small dog", "a big cat", "the dog and the cat"] * 3
KINDS = ("bpe", "unigram", "byte", "separate")


def files_of(folder: Path) -> list[Path]:
    """Return the files of a model folder, without the subfolder with an export for another engine."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def make_model_folder(path: Path, kind: str) -> None:
    """Write a model folder with one tokenizer, or with a character and a word tokenizer."""
    if kind == "separate":
        source, target = (
            Tokenizer.train(side, texts, size=60) for side, texts in (("char", SOURCES), ("word", TARGETS))
        )
    else:
        source = target = Tokenizer.train(kind, [*SOURCES, *TARGETS], size=60)  # type: ignore[arg-type]
    tokenizers = Tokenizers(source, target)
    model = build_model(SUBJECT, vocabulary_sizes(tokenizers))
    save_model_folder(path, ModelFolder(model, choice_of(SUBJECT), tokenizers, {"beam": 2}, "# a card\n"))


def make_checkpoint(folder: Path) -> Path:
    """Write a checkpoint of step 3, with an optimizer that has made one step."""
    model = build_model(SUBJECT)
    optimizer = make_optimizer(model, TrainingConfig())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer.step()
    state = TrainingState(
        Progress(step=3, source_tokens=50, target_tokens=60, flops=1e6, seconds=2.5, best=1.5, best_step=2)
    )
    return write_checkpoint(folder, Snapshot(weights_of(model), optimizer_tensors(model, optimizer), state))


def copy_of(folder: Path, directory: Path) -> Path:
    """Copy a folder."""
    return Path(shutil.copytree(folder, directory / folder.name))


def update_manifest(folder: Path) -> None:
    """Write a manifest that matches the files of the folder, as an attacker would."""
    files = {file.name: describe_file(file) for file in files_of(folder) if file.name != MANIFEST}
    write_json(folder / MANIFEST, {"files": files})


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the value of a JSON file."""
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")


def sparse_file(path: Path, size: int, start: bytes = b"", end: bytes = b"") -> None:
    """Write a file of this size that takes no disk space, with NUL bytes between its start and its end."""
    path.write_bytes(start)
    os.truncate(path, size - len(end))
    with path.open("ab") as file:
        file.write(end)


def resume_from(folder: Path) -> TrainingState:
    """Load the newest checkpoint, as a resumed run does; a damaged checkpoint is an error."""
    found = find_newest_intact(folder)
    for _, fault in found.damaged:
        raise fault
    assert found.path is not None
    model = build_model(SUBJECT)
    return load_checkpoint(found.path, model, make_optimizer(model, TrainingConfig()))
