"""Settings that a run takes from the trained model it starts from: those of the model and of its tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saccade.config import build, merge
from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.errors import InputFileError, SaccadeError
from saccade.folder import damaged, read_json
from saccade.model_folder import CONFIG, find_model_folder
from saccade.models.registry import FAMILIES, Choice, choose, load_family, presets
from saccade.untrusted_files import shown

TOKENIZER_SETTINGS = frozenset(
    {"tokenizer", "target_tokenizer", "vocabulary", "target_vocabulary", "joint", "normalization"}
)
"""Data settings that the tokenizers of the start model determine."""


def start_path(values: Mapping[str, Any]) -> str | None:
    """Return training.start of unvalidated settings, or None."""
    training = values.get("training")
    start = training.get("start") if isinstance(training, Mapping) else None
    return start if isinstance(start, str) and start else None


def has_start_settings(values: Mapping[str, Any]) -> bool:
    """Return whether all settings that a start model determines are given, as in the config of a run."""
    model, data = values.get("model"), values.get("data")
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return False
    family = model.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        return False
    return load_family(family).config.model_fields.keys() <= model.keys() and data.keys() >= TOKENIZER_SETTINGS


def fill_from_start(values: Mapping[str, Any], start: str, *, where: str) -> dict[str, Any]:
    """Fill unvalidated settings with the model and tokenizers of the start model; contradictions are errors."""
    folder = find_start_folder(start)
    config = read_json(folder / CONFIG)
    if not isinstance(config.get("model"), dict):
        raise damaged(folder / CONFIG, "not the config of a model")
    choice = choose(config["model"], where=str(folder / CONFIG))
    model, data = values.get("model", {}), values.get("data", {})
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return dict(values)  # rejected later by the typed config
    model_settings = merge_model_settings(choice, model, start, where)
    tokenizers = tokenizer_settings(load_tokenizers(folder), data, start, where)
    return {**values, "model": model_settings, "data": {**data, **tokenizers}}


def find_start_folder(start: str) -> Path:
    """Return the model folder of a start path, which may be a run directory."""
    advice = "name a run directory or a model folder to start from"
    try:
        return find_model_folder(Path(start))
    except OSError as error:  # for example an invalid file name
        raise InputFileError(f"{shown(start, 200)} cannot be read: {error.strerror}", hint=advice) from None
    except SaccadeError as error:  # the message names the path, because it is the value of a setting
        raise InputFileError(f"{shown(start, 200)}: {error.what}", hint=advice) from None


def merge_model_settings(choice: Choice, given: Mapping[str, Any], start: str, where: str) -> dict[str, Any]:
    """Merge given model settings over those of the start model; a given preset or family must match it."""
    changes = {name: value for name, value in given.items() if name not in ("preset", "family")}
    family, preset = given.get("family"), given.get("preset")
    if family is not None and family != choice.family:
        raise SaccadeError(
            f"{start} is a {choice.family}, not {shown(family)}", where=where, hint="leave out --model.family"
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
                hint="leave out --preset: the model is the one in the folder",
            )
    return merge(choice.dump(), changes)


def tokenizer_settings(tokenizers: Tokenizers, given: Mapping[str, Any], start: str, where: str) -> dict[str, Any]:
    """Return the data settings of the start model's tokenizers; contradictions are errors, larger limits are not."""
    source, target = tokenizers
    joint = source is target
    settings = {
        "tokenizer": source.kind,
        "target_tokenizer": None if joint else target.kind,
        "vocabulary": source.size,
        "target_vocabulary": None if joint else target.size,
        "joint": joint,
        "normalization": source.normalization,
    }
    explicit = {name: given[name] for name in TOKENIZER_SETTINGS & given.keys() if given[name] is not None}
    actual = resolve_tokenizer_settings(build(DataConfig, settings, where=start))
    wanted = resolve_tokenizer_settings(build(DataConfig, merge({**settings, "joint": None}, explicit), where=where))
    conflicts = [
        f"{name.replace('_', '-')} {actual[name]}, not {wanted[name]}"
        for name in sorted(explicit)
        if wanted[name] != actual[name] and not (name.endswith("vocabulary") and wanted[name] > actual[name])
    ]
    if conflicts:
        raise SaccadeError(
            f"settings conflict with the tokenizers of {start}: {'; '.join(conflicts)}",
            where=where,
            hint="leave these data settings out: a trained model keeps its vocabulary",
        )
    return settings


def resolve_tokenizer_settings(data: DataConfig) -> dict[str, Any]:
    """Return the tokenizer settings with their defaults resolved."""
    return {
        "tokenizer": data.tokenizer,
        "target_tokenizer": data.target_setting,
        "vocabulary": data.vocabulary,
        "target_vocabulary": data.target_size,
        "joint": data.shares_vocabulary,
        "normalization": data.normalization,
    }


def is_gone(start: str) -> bool:
    """Return whether the start folder no longer exists."""
    try:
        find_start_folder(start)
    except SaccadeError:
        return True
    return False
