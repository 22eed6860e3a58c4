"""Starting from a trained model: its settings, its tokenizers and its weights come from its folder.

What a run takes from there stands in its config and its checkpoints; the folder is read again only if the run has to
begin again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from saccade.config import build, merge
from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.errors import SaccadeError
from saccade.folder import MANIFEST, damaged, json_text, read_json, replace_file
from saccade.model_folder import (
    CONFIG,
    WEIGHTS,
    ModelFolder,
    Shape,
    find_model_folder,
    load_model_folder,
    named_weights,
    put_weights,
    vocabulary_sizes,
    weights_of,
)
from saccade.models.registry import FAMILIES, Choice, choose, load_family, presets
from saccade.untrusted_files import shown

TOKENS = frozenset({"tokenizer", "target_tokenizer", "vocabulary", "target_vocabulary", "joint", "normalization"})
"""Settings of the data that the tokenizers of the folder decide."""


def start_of(values: Mapping[str, Any]) -> str | None:
    """The folder that plain settings start from, if they name one."""
    training = values.get("training")
    start = training.get("start") if isinstance(training, Mapping) else None
    return start if isinstance(start, str) and start else None


def is_resolved(values: Mapping[str, Any]) -> bool:
    """Whether plain settings already hold all that a folder would decide, as those of an earlier run do."""
    model, data = values.get("model"), values.get("data")
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return False
    family = model.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        return False
    return load_family(family).config.model_fields.keys() <= model.keys() and data.keys() >= TOKENS


def complete_from_start(values: Mapping[str, Any], start: str, *, where: str) -> dict[str, Any]:
    """Plain settings with the model and the tokenizers of the folder; those that contradict it are refused."""
    place = start_folder(start)
    config = read_json(place / CONFIG)
    if not isinstance(config.get("model"), dict):
        raise damaged(place / CONFIG, "is not that of a model")
    choice = choose(config["model"], where=str(place / CONFIG))
    model, data = values.get("model", {}), values.get("data", {})
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return dict(values)  # the typed config will refuse it
    changed = changed_model(choice, model, start, where)
    tokens = token_settings(load_tokenizers(place), data, start, where)
    return {**values, "model": changed, "data": {**data, **tokens}}


def start_folder(start: str) -> Path:
    """The model folder that is meant."""
    advice = "name a run directory or a model folder to start from"
    try:
        return find_model_folder(Path(start))
    except OSError as error:  # a name that no file can have
        raise SaccadeError(f"{shown(start, 200)} cannot be read: {error.strerror}", do=advice) from None
    except SaccadeError as error:  # the place is part of the message: the user gave it as a setting
        raise SaccadeError(f"{shown(start, 200)}: {error.what}", do=advice) from None


def changed_model(choice: Choice, given: Mapping[str, Any], start: str, where: str) -> dict[str, Any]:
    """The settings of the folder's model with those given on top; a preset or a family must be the folder's."""
    changes = {name: value for name, value in given.items() if name not in ("preset", "family")}
    family, preset = given.get("family"), given.get("preset")
    if family is not None and family != choice.family:
        raise SaccadeError(
            f"{start} is a {choice.family}, not {shown(family)}", where=where, do="leave out --model.family"
        )
    if preset is not None:
        chosen = choose({"preset": preset}, where=where)
        known = {name: value for name, value in choice.dump().items() if name not in changes}
        other = [name for name, value in known.items() if chosen.dump().get(name) != value]
        if other:
            same = [name for name, one in presets().items() if one == choice]
            raise SaccadeError(
                f"{start} is not {shown(preset)}: its {other[0]} is {known[other[0]]}".replace("_", "-")
                + (f"; it is {same[0]}" if same else ""),
                where=where,
                do="leave out --preset: the model is that of the folder",
            )
    return merge(choice.dump(), changes)


def token_settings(tokenizers: Tokenizers, given: Mapping[str, Any], start: str, where: str) -> dict[str, Any]:
    """The settings of the data that describe the folder's tokenizers; others are refused, larger limits are not."""
    source, target = tokenizers
    joint = source is target
    own = {
        "tokenizer": source.kind,
        "target_tokenizer": None if joint else target.kind,
        "vocabulary": source.size,
        "target_vocabulary": None if joint else target.size,
        "joint": joint,
        "normalization": source.normalization,
    }
    said = {name: given[name] for name in TOKENS & given.keys() if given[name] is not None}
    kept = resolved(build(DataConfig, own, where=start))
    asked = resolved(build(DataConfig, merge({**own, "joint": None}, said), where=where))
    faults = [
        f"{name.replace('_', '-')} {kept[name]}, not {asked[name]}"
        for name in sorted(said)
        if asked[name] != kept[name] and not (name.endswith("vocabulary") and asked[name] > kept[name])
    ]
    if faults:
        raise SaccadeError(
            f"{start} has its own tokenizers: {'; '.join(faults)}",
            where=where,
            do="leave these settings of the data out: a trained model keeps its vocabulary",
        )
    return own


def resolved(data: DataConfig) -> dict[str, Any]:
    """The settings that tokenizers decide, with their defaults resolved."""
    return {
        "tokenizer": data.tokenizer,
        "target_tokenizer": data.target_kind,
        "vocabulary": data.vocabulary,
        "target_vocabulary": data.target_size,
        "joint": data.shares_vocabulary,
        "normalization": data.normalization,
    }


def is_gone(start: str) -> bool:
    """Whether there is no such folder; the settings of a run hold what was taken from it."""
    try:
        start_folder(start)
    except SaccadeError:
        return True
    return False


class Start(NamedTuple):
    """A trained model to start from."""

    path: str
    folder: ModelFolder


def load_start(path: str, choice: Choice) -> Start:
    """The verified folder, if its weights fit a model of these settings."""
    folder = load_model_folder(start_folder(path))
    sizes = vocabulary_sizes(folder.tokenizers)
    if folder.choice.family != choice.family or shapes_of(choice.outline(sizes)) != shapes_of(folder.model):
        raise SaccadeError(
            f"its weights do not fit another model: {', '.join(changed_settings(folder.choice, choice))}",
            where=path,
            do="change only what leaves all weights in their shape, such as dropout",
        )
    return Start(path, folder)


def find_start(path: str, choice: Choice, note: Path | None) -> Start:
    """The same; which weights they are stands in the file `note` from then on, and later ones must be the same."""
    digest = start_digest(path)
    if note is not None and note.exists() and read_json(note).get("weights") != digest:
        raise SaccadeError(
            "the model is not what it was when the run began",
            where=path,
            do="put it back, or start a new run with another --output",
        )
    start = load_start(path, choice)
    if note is not None:
        replace_file(note, json_text({"folder": path, "weights": digest}))
    return start


def put_start(model: Any, start: Start | None, choice: Choice) -> list[str]:
    """Give a model of this choice the weights to start from, if there are such; returns what there is to tell."""
    if start is None:
        return []
    put_weights(model, weights_of(start.folder.model), Path(start.path))
    return [
        f"starts from {start.path}",
        *(f"changed: {words}" for words in changed_settings(start.folder.choice, choice)),
    ]


def changed_settings(before: Choice, after: Choice) -> list[str]:
    """In which settings a model differs from the one it starts from, in words."""
    old, new = before.dump(), after.dump()
    return [
        f"model.{name} {old.get(name)} -> {new.get(name)}".replace("_", "-")
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def shapes_of(model: Any) -> dict[str, Shape]:
    """The name and the shape of every weight."""
    return {name: Shape.of(tensor) for name, tensor in named_weights(model).items()}


def start_digest(start: str) -> str:
    """The SHA-256 of the folder's weights, as its manifest states it."""
    place = start_folder(start)
    try:
        return str(read_json(place / MANIFEST)["files"][WEIGHTS]["sha256"])
    except (KeyError, TypeError):
        raise damaged(place / MANIFEST, "does not list the weights") from None
