"""A model folder: complete, so that raw text goes in and raw text comes out with nothing else at hand.

    config.json         family, settings, vocabulary sizes
    model.safetensors   weights
    tokenizer.json      the joint vocabulary, or tokenizer.source.json and tokenizer.target.json
    generation.json     decoding defaults
    README.md           model card
    manifest.json       SHA-256 of every other file, written last

It is a folder that is whole or absent, and checked against its manifest whenever it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from saccade.data.tokenizer import Tokenizer, Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import damaged, previous, read_json, verify, whole_folder, write_json
from saccade.interface import VocabularySizes
from saccade.models.registry import Choice, choose
from saccade.version import __version__

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ModelFolder:
    """What a model folder holds, in memory."""

    model: Any
    choice: Choice
    tokenizers: Tokenizers
    generation: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""


def vocabulary_sizes(tokenizers: Tokenizers) -> VocabularySizes:
    """The sizes that a model needs to know of its vocabularies."""
    joint = tokenizers.source is tokenizers.target
    return VocabularySizes(tokenizers.source.size, tokenizers.target.size, joint)


def save_model_folder(path: Path, folder: ModelFolder) -> None:
    """Write a model folder; an older one in the same place is replaced only when the new one is whole."""
    sizes = vocabulary_sizes(folder.tokenizers)
    config = {"saccade": __version__, "model": folder.choice.dump(), "sizes": asdict(sizes)}
    with whole_folder(path) as place:
        write_json(place / "config.json", config)
        save_tensors(place / WEIGHTS, weights_of(folder.model))
        save_tokenizers(place, folder.tokenizers)
        write_json(place / "generation.json", folder.generation)
        (place / "README.md").write_text(folder.card, encoding="utf-8")


def load_model_folder(path: Path, device: torch.device | str = "cpu") -> ModelFolder:
    """Read a model folder, or the best one of a run directory; every file is checked against the manifest first."""
    path = find_model_folder(path)
    verify(path)
    config = read_json(path / "config.json")
    try:
        sizes = VocabularySizes(**config["sizes"])
        choice = choose(config["model"], where=str(path / "config.json"))
    except (KeyError, TypeError) as error:
        raise damaged(path / "config.json", f"lacks {error}") from None
    tokenizers = load_tokenizers(path)
    if vocabulary_sizes(tokenizers) != sizes:
        raise damaged(path / "config.json", "speaks of another vocabulary than the tokenizer files hold")
    model = choice.build(sizes)
    load_weights(model, path / WEIGHTS)
    card = (path / "README.md").read_text(encoding="utf-8")
    return ModelFolder(model.to(device).eval(), choice, tokenizers, read_json(path / "generation.json"), card)


def save_tokenizers(folder: Path, tokenizers: Tokenizers) -> None:
    """One file for a joint vocabulary, two for separate ones."""
    if tokenizers.source is tokenizers.target:
        tokenizers.source.save(folder / "tokenizer.json")
    else:
        tokenizers.source.save(folder / "tokenizer.source.json")
        tokenizers.target.save(folder / "tokenizer.target.json")


def load_tokenizers(folder: Path) -> Tokenizers:
    """What `save_tokenizers` wrote; a joint vocabulary is one object for both sides."""
    if (folder / "tokenizer.json").is_file():
        joint = Tokenizer.load(folder / "tokenizer.json")
        return Tokenizers(joint, joint)
    return Tokenizers(
        Tokenizer.load(folder / "tokenizer.source.json"), Tokenizer.load(folder / "tokenizer.target.json")
    )


def find_model_folder(path: Path) -> Path:
    """The folder itself, or model-best or model-last of a run directory."""
    path = Path(path)
    names = ("model-best", "model-last")
    # A run that was killed between two renames has its older model aside until it is resumed.
    for candidate in (path, *(path / name for name in names), *(previous(path / name) for name in names)):
        if (candidate / "config.json").is_file():
            return candidate
    if not path.exists():
        raise SaccadeError(
            "there is no such run or model folder", where=str(path), do="train one: saccade train --help"
        )
    raise SaccadeError(
        "holds no model", where=str(path), do="name a run directory or a folder with config.json and model.safetensors"
    )


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer once, also where several names share one tensor."""
    tensors = dict(model.named_parameters())
    kept = model.state_dict(keep_vars=True).keys()
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name in kept}  # type: ignore[misc]
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the tensors of a file into a model; names, shapes and types must be exactly the model's."""
    put_weights(model, load_tensors(path), path)


def put_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors that came from `path` into a model, if they are exactly the model's."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wanted = weights_of(model)
    if tensors.keys() != wanted.keys():
        strange = sorted(tensors.keys() ^ wanted.keys())[0]
        raise damaged(path, f"the tensor '{strange}' is on one side only: the weights are of another model")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            raise damaged(path, f"the tensor '{name}' is {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # a full disk is one too
        raise OSError(str(error)) from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors from safetensors; nothing in the file can run."""
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(path, str(error)) from None
