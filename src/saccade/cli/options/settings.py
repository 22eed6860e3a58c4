"""Dotted settings of the command line: `--training.learning-rate 7e-4`, `--decoding.length-alpha 0.6`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import typer

from saccade import messages
from saccade.cli.options.command import SETTINGS, SettingHelp, Settings
from saccade.errors import SaccadeError, UsageError, did_you_mean

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Translator

DEFAULT_PRESET = "transformer-tiny"
LISTED_ELSEWHERE = frozenset(
    {"output", "model", "data.source", "data.target", "data.valid-source", "data.valid-target"}
)
"""Settings of a run that have a plain option, and the model settings, which are listed by family."""

T = TypeVar("T")


def describe_run_settings(options: Mapping[str, Any]) -> list[SettingHelp]:
    """Every setting of a run, with the model settings of the family that --preset selects."""
    from saccade.config import describe
    from saccade.models.registry import FAMILIES, load_family, presets
    from saccade.training.config import RunConfig

    known = presets()
    preset = options.get("preset") if options.get("preset") in known else DEFAULT_PRESET
    family, config = known[str(preset)]
    values = config.model_dump()
    names = f"A model family instead of a preset: {', '.join(FAMILIES)}. The defaults below are those of {preset}."
    rows = [("model.family", family, names)]
    for name, _, text in describe(load_family(family).config):
        rows.append((f"model.{name}", str(values[name.replace("-", "_")]), text))
    rest = [row for row in describe(RunConfig) if row[0] not in LISTED_ELSEWHERE]
    return rows + [(name, format_default(default), text) for name, default, text in rest]


def format_default(default: str) -> str:
    """A default in command-line syntax: tuple items separated by commas."""
    if not default.startswith("("):
        return default
    return ",".join(item.strip(" '") for item in default.strip("(),").split(","))


def describe_decoding_settings(_: Mapping[str, Any]) -> list[SettingHelp]:
    """Every decoding setting."""
    from saccade.config import describe
    from saccade.decoding.config import DecodingConfig

    return describe(DecodingConfig, "decoding.")


RUN_SETTINGS = Settings(describe_run_settings)
DECODING_SETTINGS = Settings(describe_decoding_settings)


def parse_settings(context: typer.Context) -> dict[str, Any]:
    """The dotted settings of this command as a nested mapping."""
    from saccade.config import parse_overrides

    return parse_overrides(context.meta[SETTINGS])


def parse_run_settings(context: typer.Context) -> dict[str, Any]:
    """The dotted settings of a training run as a nested mapping."""
    from saccade.training.config import RunConfig

    settings = parse_settings(context)
    split_lists(RunConfig, settings)
    return settings


def split_lists(kind: type[Config], values: dict[str, Any]) -> None:
    """Turn `--training.metrics bleu,chrf` into a list, in place, if the setting is a list."""
    from saccade.config import config_type

    for name, value in values.items():
        if name not in kind.model_fields:
            continue  # validation of the typed config reports it
        annotation = kind.model_fields[name].annotation
        group = config_type(annotation)
        if group is not None and isinstance(value, dict):
            split_lists(group, value)
        elif isinstance(value, str) and get_origin(annotation) is tuple:
            values[name] = value.split(",")


def apply_settings(make: Callable[[Mapping[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """Call `make(settings)`; an error that does not occur without the settings becomes a UsageError."""
    try:
        return make(settings)
    except SaccadeError as error:
        try:
            make({})
        except SaccadeError:
            raise error from None
        raise UsageError(error.what, hint=error.hint) from None


def decoding_settings(
    translator: Translator, context: typer.Context, shortcuts: Mapping[str, Any] | None = None
) -> DecodingConfig:
    """The decoding defaults of the model, overridden by dotted settings and by plain options that are not None."""
    groups = parse_settings(context)
    for group in groups:
        if group != "decoding":
            raise UsageError(f"unknown setting '--{group}.…'", hint=did_you_mean(group, ["decoding"]))
    changes = groups.get("decoding", {})
    if not isinstance(changes, dict):
        raise UsageError("--decoding is a group of settings", hint=f"see {context.command_path} --help")
    given = {name: value for name, value in (shortcuts or {}).items() if value is not None}
    settings = apply_settings(translator.settings, {**changes, **given})
    messages.detail("decoding: " + ", ".join(f"{name} {value}" for name, value in settings.model_dump().items()))
    return settings
