"""Dotted settings of the command line: `--training.learning-rate 7e-4`, `--decoding.length-alpha 0.6`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import typer

from saccade.cli.command import SETTINGS, Settings
from saccade.errors import SaccadeError, UsageError, did_you_mean

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Translator

DEFAULT_PRESET = "transformer-tiny"
PLAIN = frozenset({"output", "model", "data.source", "data.target", "data.valid-source", "data.valid-target"})
"""Settings of a run that have a plain option, or are listed by family."""

T = TypeVar("T")


def run_rows(options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every setting of a run, those of the chosen model's family included."""
    from saccade.config import describe
    from saccade.models.registry import FAMILIES, load_family, presets
    from saccade.training.config import RunConfig

    known = presets()
    preset = options.get("preset") if options.get("preset") in known else DEFAULT_PRESET
    family, config = known[str(preset)]
    chosen = config.model_dump()
    names = f"Instead of a preset: {', '.join(FAMILIES)}. The defaults below are those of {preset}."
    rows = [("model.family", family, names)]
    for name, _, text in describe(load_family(family).config):
        rows.append((f"model.{name}", str(chosen[name.replace("-", "_")]), text))
    rest = [row for row in describe(RunConfig) if row[0] not in PLAIN]
    return rows + [(name, written(default), text) for name, default, text in rest]


def written(default: str) -> str:
    """A default as the command line writes it: the items of a tuple with commas between."""
    if not default.startswith("("):
        return default
    return ",".join(item.strip(" '") for item in default.strip("(),").split(","))


def decoding_rows(_: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every setting of a search."""
    from saccade.config import describe
    from saccade.decoding.config import DecodingConfig

    return describe(DecodingConfig, "decoding.")


RUN = Settings(run_rows)
DECODING = Settings(decoding_rows)


def settings_of(context: typer.Context) -> dict[str, Any]:
    """The dotted settings of this command as a nested mapping."""
    from saccade.config import parse_overrides

    return parse_overrides(context.meta[SETTINGS])


def run_settings(context: typer.Context) -> dict[str, Any]:
    """The dotted settings of a run."""
    from saccade.training.config import RunConfig

    settings = settings_of(context)
    split_lists(RunConfig, settings)
    return settings


def split_lists(kind: type[Config], values: dict[str, Any]) -> None:
    """Turn `--training.metrics bleu,chrf` into a list, in place, where the setting is one."""
    from saccade.config import config_type

    for name, value in values.items():
        if name not in kind.model_fields:
            continue  # the typed config will refuse it
        annotation = kind.model_fields[name].annotation
        group = config_type(annotation)
        if group is not None and isinstance(value, dict):
            split_lists(group, value)
        elif isinstance(value, str) and get_origin(annotation) is tuple:
            values[name] = value.split(",")


def apply_settings(make: Callable[[Mapping[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """`make(settings)`, where a fault that is gone without the settings is one of usage."""
    try:
        return make(settings)
    except SaccadeError as error:
        try:
            make({})
        except SaccadeError:
            raise error from None
        raise UsageError(error.what, do=error.do) from None


def decoding_settings(
    translator: Translator, context: typer.Context, shortcuts: Mapping[str, Any] | None = None
) -> DecodingConfig:
    """The model's decoding defaults, changed by dotted settings and by plain options (None where not given)."""
    groups = settings_of(context)
    for group in groups:
        if group != "decoding":
            raise UsageError(f"unknown setting '--{group}.…'", do=did_you_mean(group, ["decoding"]))
    changes = groups.get("decoding", {})
    if not isinstance(changes, dict):
        raise UsageError("--decoding is a group of settings", do=f"see {context.command_path} --help")
    given = {name: value for name, value in (shortcuts or {}).items() if value is not None}
    return apply_settings(translator.settings, {**changes, **given})
