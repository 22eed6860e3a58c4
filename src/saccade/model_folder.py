"""A model folder: complete, so that raw text goes in and raw text comes out with nothing else at hand.

    config.json         family, settings, vocabulary sizes
    model.safetensors   weights
    tokenizer.json      the joint vocabulary, or tokenizer.source.json and tokenizer.target.json
    generation.json     decoding defaults
    README.md           model card
    validation.json     how good it was on the validation data, if there was any
    manifest.json       SHA-256 of every other file, written last

It is a folder that is whole or absent, and checked against its manifest whenever it is loaded.
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
from saccade.errors import SaccadeError
from saccade.folder import damaged, previous, read_json, read_plain, verifying, whole_folder, write_json
from saccade.interface import VocabularySizes
from saccade.models.registry import Choice, choose
from saccade.untrusted_files import parse_json, shown
from saccade.version import __version__

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
GENERATION = "generation.json"
CARD = "README.md"
VALIDATION = "validation.json"

LARGEST_HEAD = 2**22  # bytes of the list of tensors in a file of weights; each takes some hundred
KINDS = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


@dataclass(frozen=True)
class ModelFolder:
    """What a model folder holds, in memory."""

    model: Any
    choice: Choice
    tokenizers: Tokenizers
    generation: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    validation: Mapping[str, Any] | None = None


def vocabulary_sizes(tokenizers: Tokenizers) -> VocabularySizes:
    """The sizes that a model needs to know of its vocabularies."""
    joint = tokenizers.source is tokenizers.target
    return VocabularySizes(tokenizers.source.size, tokenizers.target.size, joint)


def save_model_folder(path: Path, folder: ModelFolder) -> None:
    """Write a model folder; an older one in the same place is replaced only when the new one is whole."""
    sizes = vocabulary_sizes(folder.tokenizers)
    config = {"saccade": __version__, "model": folder.choice.dump(), "sizes": asdict(sizes)}
    with whole_folder(path) as place:
        write_json(place / CONFIG, config)
        save_tensors(place / WEIGHTS, weights_of(folder.model))
        save_tokenizers(place, folder.tokenizers)
        write_json(place / GENERATION, folder.generation)
        (place / CARD).write_text(folder.card, encoding="utf-8")
        if folder.validation is not None:
            write_json(place / VALIDATION, folder.validation)


def load_model_folder(path: Path, device: torch.device | str = "cpu") -> ModelFolder:
    """Read a model folder, or the best one of a run directory; every file is checked against the manifest first."""
    path = find_model_folder(path)
    with verifying(path, CONFIG, WEIGHTS, GENERATION, CARD) as names:
        return read_model_folder(path, names, device)


def read_model_folder(path: Path, names: frozenset[str], device: torch.device | str) -> ModelFolder:
    """What the verified files of a folder say."""
    config = read_json(path / CONFIG)
    if config.keys() != {"saccade", "model", "sizes"}:
        raise damaged(path / CONFIG, "is not that of a model: it has other parts than saccade, model and sizes")
    choice = choose(config["model"], where=str(path / CONFIG))
    tokenizers = load_tokenizers(path, names)
    sizes = vocabulary_sizes(tokenizers)
    if config["sizes"] != asdict(sizes):
        raise damaged(path / CONFIG, "speaks of another vocabulary than the tokenizer files hold")
    check_fit(choice, sizes, path)
    model = choice.make_unfilled(sizes)
    load_weights(model, path / WEIGHTS)
    generation, card = read_json(path / GENERATION), read_plain(path / CARD)
    validation = read_json(path / VALIDATION) if VALIDATION in names else None
    return ModelFolder(model.to(device).eval(), choice, tokenizers, generation, card, validation)


def check_fit(choice: Choice, sizes: VocabularySizes, path: Path) -> None:
    """Refuse a config that does not describe the weights, before it takes any memory."""
    shapes = tensor_shapes(path / WEIGHTS)
    try:
        # A tensor that is shared has a name in each place where it is used.
        outline = choice.outline(sizes, most=4 * len(shapes) + 64)
    except SaccadeError as error:
        raise damaged(path / CONFIG, f"describes no model of these weights: {error.what}") from None
    check_shapes(shapes, named_weights(outline), path / WEIGHTS)


def find_model_folder(path: Path) -> Path:
    """The folder itself, or model-best or model-last of a run directory."""
    path = Path(path)
    # A writer that was killed between two renames has left the older model aside; it is put back on resuming.
    aside = [] if path.exists() or not path.name else [previous(path)]
    models = [place for name in ("model-best", "model-last") for place in (path / name, previous(path / name))]
    for candidate in (path, *aside, *models):
        if (candidate / CONFIG).is_file():
            return candidate
    if not path.exists():
        raise SaccadeError(
            "there is no such run or model folder", where=str(path), do="train one: saccade train --help"
        )
    raise SaccadeError(
        "holds no model", where=str(path), do="name a run directory or a folder with config.json and model.safetensors"
    )


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer once, also where several names share one tensor."""
    kept = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """What a file keeps of a model."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named_weights(model).items()}


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the tensors of a file into a model; names, shapes and types must be exactly the model's."""
    check_shapes(tensor_shapes(path), named_weights(model), path)  # before anything is read
    put_weights(model, load_tensors(path), path)


def put_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors that came from `path` into a model, if they are exactly the model's and all numbers."""
    own = named_weights(model)
    check_shapes({name: Shape.of(tensor) for name, tensor in tensors.items()}, own, path)
    for name, tensor in tensors.items():
        # The sum tells almost always, in one pass; it can overflow where all entries are finite.
        if not (tensor.sum().isfinite() or tensor.isfinite().all()):
            raise damaged(path, f"the tensor '{name}' holds values that are infinite or no numbers")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


class Shape(NamedTuple):
    """The size and the type of a tensor."""

    size: tuple[int, ...]
    kind: str  # as safetensors calls it

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        """The shape of a tensor in memory."""
        return cls(tuple(tensor.shape), KINDS.get(tensor.dtype, str(tensor.dtype)))

    def __str__(self) -> str:
        return f"{shown(self.size)} of {self.kind}"


def check_shapes(found: Mapping[str, Shape], model: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors of `path` whose names, sizes or types are not exactly the model's."""
    if strange := found.keys() ^ model.keys():
        name = shown(min(strange))
        raise damaged(path, f"the tensor {name} is on one side only: the weights are of another model")
    for name, shape in found.items():
        if shape != Shape.of(model[name]):
            raise damaged(path, f"the tensor '{name}' is {shape}, not {Shape.of(model[name])}")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # a full disk is one too
        raise OSError(str(error)) from None


def tensor_shapes(path: Path) -> dict[str, Shape]:
    """The names, sizes and types in the head of a safetensors file; the library checks where they lie in it."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LARGEST_HEAD:
                raise ValueError(f"its head is larger than {LARGEST_HEAD:,} bytes")
            head = parse_json(file.read(length).decode("utf-8"))
        head.pop("__metadata__", None)
        return {name: Shape(tuple(entry["shape"]), entry["dtype"]) for name, entry in head.items()}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        what = str(error) if isinstance(error, OSError | ValueError) else "its head lists no tensors"
        raise damaged(path, f"is no safetensors file ({what})") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors from safetensors; nothing in the file can run."""
    tensor_shapes(path)  # the library takes the last of two tensors of one name
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(path, str(error)) from None
