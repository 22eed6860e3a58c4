"""A model folder: everything that is needed to run a model on raw text.

    config.json         family, settings, vocabulary sizes
    model.safetensors   weights
    tokenizer.json      the joint vocabulary, or tokenizer.source.json and tokenizer.target.json
    generation.json     decoding defaults
    README.md           model card
    validation.json     validation scores, if there was validation data
    manifest.json       SHA-256 of every other file, written last

It is written atomically, and checked against its manifest whenever it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers, save_tokenizers
from saccade.errors import InputFileError, SaccadeError
from saccade.folder import (
    atomic_folder,
    damaged,
    previous_path,
    read_json,
    read_small_text,
    verify_while_reading,
    write_json,
)
from saccade.interface import VocabularySizes
from saccade.models.registry import Choice, choose
from saccade.untrusted_files import parse_json, shown
from saccade.version import __version__

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
GENERATION = "generation.json"
CARD = "README.md"
VALIDATION = "validation.json"

MAX_HEADER_BYTES = 2**22  # of a safetensors file; a tensor takes some hundred bytes in the header
SAFETENSORS_DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}


@dataclass(frozen=True)
class ModelFolder:
    """The contents of a model folder in memory."""

    model: Any
    choice: Choice
    tokenizers: Tokenizers
    generation: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    validation: Mapping[str, Any] | None = None


def vocabulary_sizes(tokenizers: Tokenizers) -> VocabularySizes:
    """Return the vocabulary sizes of a pair of tokenizers."""
    joint = tokenizers.source is tokenizers.target
    return VocabularySizes(tokenizers.source.size, tokenizers.target.size, joint)


def save_model_folder(path: Path, folder: ModelFolder) -> None:
    """Write a model folder; an existing one is replaced atomically."""
    sizes = vocabulary_sizes(folder.tokenizers)
    config = {"saccade": __version__, "model": folder.choice.dump(), "sizes": asdict(sizes)}
    with atomic_folder(path) as staging:
        write_json(staging / CONFIG, config)
        save_tensors(staging / WEIGHTS, weights_of(folder.model))
        save_tokenizers(staging, folder.tokenizers)
        write_json(staging / GENERATION, folder.generation)
        (staging / CARD).write_text(folder.card, encoding="utf-8")
        if folder.validation is not None:
            write_json(staging / VALIDATION, folder.validation)


def load_model_folder(path: Path, device: torch.device | str = "cpu") -> ModelFolder:
    """Load a model folder, or the best one of a run directory; every file is checked against the manifest."""
    path = find_model_folder(path)
    with verify_while_reading(path, CONFIG, WEIGHTS, GENERATION, CARD) as names:
        return read_model_folder(path, names, device)


def read_model_folder(path: Path, names: frozenset[str], device: torch.device | str) -> ModelFolder:
    """Read the verified files of a model folder."""
    config = read_json(path / CONFIG)
    if config.keys() != {"saccade", "model", "sizes"}:
        raise damaged(path / CONFIG, "not the config of a model: its keys are not saccade, model and sizes")
    choice = choose(config["model"], where=str(path / CONFIG))
    tokenizers = load_tokenizers(path, names)
    sizes = vocabulary_sizes(tokenizers)
    if config["sizes"] != asdict(sizes):
        raise damaged(path / CONFIG, "vocabulary sizes differ from the tokenizer files")
    check_config_fits_weights(choice, sizes, path)
    model = choice.make_uninitialized(sizes)
    load_weights(model, path / WEIGHTS)
    generation, card = read_json(path / GENERATION), read_small_text(path / CARD)
    validation = read_json(path / VALIDATION) if VALIDATION in names else None
    return ModelFolder(model.to(device).eval(), choice, tokenizers, generation, card, validation)


def check_config_fits_weights(choice: Choice, sizes: VocabularySizes, path: Path) -> None:
    """Raise an error if the config does not match the weights, before the model is allocated."""
    specs = tensor_specs(path / WEIGHTS)
    try:
        # A shared tensor has one name for each use.
        outline = choice.outline(sizes, most=4 * len(specs) + 64)
    except SaccadeError as error:
        raise damaged(path / CONFIG, f"does not match the weights: {error.what}") from None
    check_specs(specs, named_weights(outline), path / WEIGHTS)


def find_model_folder(path: Path) -> Path:
    """Return the folder itself, or model-best or model-last of a run directory."""
    path = Path(path)
    # A writer killed between two renames leaves the old model under its previous path, until the run is resumed.
    renamed = [] if path.exists() or not path.name else [previous_path(path)]
    models = [folder for name in ("model-best", "model-last") for folder in (path / name, previous_path(path / name))]
    for candidate in (path, *renamed, *models):
        if (candidate / CONFIG).is_file():
            return candidate
    if not path.exists():
        raise InputFileError("no such run or model folder", where=str(path), hint="train one: saccade train --help")
    raise InputFileError(
        "contains no model",
        where=str(path),
        hint="name a run directory or a folder with config.json and model.safetensors",
    )


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer once; a shared tensor has one name."""
    kept = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model as contiguous CPU tensors, as they are saved."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named_weights(model).items()}


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights from a file into a model; names, shapes and dtypes must match exactly."""
    check_specs(tensor_specs(path), named_weights(model), path)  # before the tensors are read
    copy_weights(model, load_tensors(path), path)


def copy_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors that were read from `path` into a model; they must match exactly and be finite."""
    weights = named_weights(model)
    check_specs({name: TensorSpec.of(tensor) for name, tensor in tensors.items()}, weights, path)
    for name, tensor in tensors.items():
        # The sum is a fast test; it can overflow although all entries are finite.
        if not (tensor.sum().isfinite() or tensor.isfinite().all()):
            raise damaged(path, f"tensor '{name}' contains infinite or NaN values")
    with torch.no_grad():
        for name, tensor in tensors.items():
            weights[name].copy_(tensor)


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str  # in the notation of safetensors

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Return the spec of a tensor in memory."""
        return cls(tuple(tensor.shape), SAFETENSORS_DTYPES.get(tensor.dtype, str(tensor.dtype)))

    def __str__(self) -> str:
        return f"{shown(self.shape)} {self.dtype}"


def check_specs(found: Mapping[str, TensorSpec], model: Mapping[str, Tensor], path: Path) -> None:
    """Raise an error if names, shapes or dtypes of the tensors in `path` differ from the model."""
    if different := found.keys() ^ model.keys():
        name = shown(min(different))
        raise damaged(path, f"missing or unexpected tensor {name}: the weights belong to another model")
    for name, spec in found.items():
        if spec != TensorSpec.of(model[name]):
            raise damaged(path, f"tensor '{name}' is {spec}, expected {TensorSpec.of(model[name])}")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # also raised for a full disk
        raise OSError(str(error)) from None


def tensor_specs(path: Path) -> dict[str, TensorSpec]:
    """Read names, shapes and dtypes from the header of a safetensors file; the library checks the offsets."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"its header is larger than {MAX_HEADER_BYTES:,} bytes")
            header = parse_json(file.read(length).decode("utf-8"))
        header.pop("__metadata__", None)
        return {name: TensorSpec(tuple(entry["shape"]), entry["dtype"]) for name, entry in header.items()}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        what = str(error) if isinstance(error, OSError | ValueError) else "its header lists no tensors"
        raise damaged(path, f"not a safetensors file ({what})") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors from safetensors; the format cannot contain code."""
    tensor_specs(path)  # rejects duplicate names, of which the library silently takes the last
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(path, str(error)) from None
