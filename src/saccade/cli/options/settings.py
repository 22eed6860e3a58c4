"""Dotted settings of the command line: `--training.learning-rate 7e-4`, `--decoding.length-alpha 0.6`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import typer

from saccade import messages
from saccade.cli.options.command import SETTINGS
from saccade.errors import InputFileError, SaccadeError, UsageError, did_you_mean

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Translator

T = TypeVar("T")


def parse_settings(context: typer.Context) -> dict[str, Any]:
    """Return the dotted settings of this command as a nested mapping."""
    from saccade.config import parse_overrides

    return parse_overrides(context.meta[SETTINGS])


def parse_run_settings(context: typer.Context) -> dict[str, Any]:
    """Return the dotted settings of a training run as a nested mapping."""
    from saccade.training.config import RunConfig

    settings = parse_settings(context)
    split_lists(RunConfig, settings)
    return settings


def split_lists(kind: type[Config], values: dict[str, Any]) -> None:
    """Turn `--training.metrics bleu,chrf` into a list, in place, if the setting is a list."""
    from saccade.config import NoValue, config_type

    for name, value in values.items():
        if name not in kind.model_fields:
            continue  # validation of the typed config reports it
        annotation = kind.model_fields[name].annotation
        group = config_type(annotation)
        if group is not None and isinstance(value, dict):
            split_lists(group, value)
        elif isinstance(value, str) and not isinstance(value, NoValue) and get_origin(annotation) is tuple:
            values[name] = value.split(",")


def apply_settings(
    make: Callable[[Mapping[str, Any]], T], settings: Mapping[str, Any], *, command: str = "saccade train"
) -> T:
    """Call `make(settings)`; an error that does not occur without the settings becomes a UsageError.

    An error in a file that the settings name stays as it is. Advice that names no command names the help of `command`.
    """
    from saccade.config import SEE_HELP

    try:
        return make(settings)
    except InputFileError:
        raise
    except SaccadeError as error:
        try:
            make({})
        except SaccadeError:
            raise error from None
        hint = f"see {command} --help-all" if error.hint in (None, SEE_HELP) else error.hint
        raise UsageError(error.what, hint=hint) from None


def decoding_settings(
    translator: Translator, context: typer.Context, shortcuts: Mapping[str, Any] | None = None
) -> DecodingConfig:
    """Return the decoding defaults of the model, overridden by dotted settings and by the plain options given."""
    groups = parse_settings(context)
    for group in groups:
        if group != "decoding":
            raise UsageError(f"unknown setting '--{group}.…'", hint=did_you_mean(group, ["decoding"]))
    changes = groups.get("decoding", {})
    if not isinstance(changes, dict):
        raise UsageError("--decoding is a group of settings", hint=f"see {context.command_path} --help")
    given = {name: value for name, value in (shortcuts or {}).items() if value is not None}
    options = {name: f"--decoding.{name.replace('_', '-')}" for name in changes}
    options |= {name: f"--{name.replace('_', '-')}" for name in given}
    try:
        settings = apply_settings(translator.settings, {**changes, **given}, command=context.command_path)
    except UsageError as error:
        check_sampling(options, shortcuts or {})
        raise with_option_names(error, options) from None
    messages.detail("decoding: " + ", ".join(f"{name} {value}" for name, value in settings.model_dump().items()))
    return settings


def check_sampling(options: Mapping[str, str], shortcuts: Mapping[str, Any]) -> None:
    """Raise an error for an option of sampling in a command without --sample."""
    needed = "--sample" if "sample" in shortcuts else "--decoding.sample"
    for name in ("temperature", "top_k", "top_p"):
        if name in options and "sample" not in options:
            raise UsageError(
                f"{options[name]} has no effect without {needed}", hint=f"add {needed}, or leave {options[name]} out"
            )


def with_option_names(error: UsageError, options: Mapping[str, str]) -> UsageError:
    """Return the error with settings named as on the command line."""
    what = error.what
    for name, option in options.items():
        setting = f"setting '{name.replace('_', '-')}'"
        what = what.replace(f"unknown {setting}", f"unknown option '{option}'").replace(setting, option)
    return UsageError(what, hint=error.hint)
