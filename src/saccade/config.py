"""Typed configuration: YAML files, dotted overrides, errors that name the nearest valid key."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from saccade.errors import InputFileError, SaccadeError, UsageError, did_you_mean, nearest
from saccade.strict_yaml import RecipeLoader
from saccade.toolkit_aliases import options_for_alias
from saccade.untrusted_files import check_plain, read_text, shown

MAX_YAML_BYTES = 2**18  # enough for some thousand paths; the parser needs some seconds for this size

YAML_LINE_BREAKS = {"\x85", "\u2028", "\u2029"}  # besides the line feed


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class ConfigType(ModelMetaclass):
    """The type of config classes: a config that is built from invalid arguments raises SaccadeError."""

    def __call__(cls, *values: Any, **settings: Any) -> Any:  # noqa: N805
        """Build a config from settings by name."""
        kind = cast(type[BaseModel], cls)
        if values:
            given = shown(values[0])
            raise SaccadeError(f"{cls.__name__}({given}): settings have names", hint="write them as NAME=VALUE")
        try:
            return super().__call__(**settings)
        except ValidationError as error:
            raise describe_errors(kind, error, where=kind.__name__) from None


class Config(BaseModel, metaclass=ConfigType):
    """Base class of all config sections: frozen and typed; unknown keys are errors.

    The docstring under a field is its help text. YAML and the command line accept keys with hyphens or underscores.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        validate_default=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def reject_bool_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject true and false for numbers, which pydantic would read as 1 and 0, and options without a value."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, NoValue) and bool not in (annotation, *typing.get_args(annotation)):
            raise PydanticCustomError("no_value", "needs a value")
        if isinstance(value, bool) and (annotation in NUMBERS or set(typing.get_args(annotation)) & NUMBERS):
            raise ValueError("must be a number, not true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def reject_huge_integers(cls, value: Any) -> Any:
        """Reject integers that do not fit into 64 bits."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("must fit into 64 bits")
        return value


class NoValue(str):
    """The value of an option that has none, as in `--data.joint`: "true", which only a flag accepts."""


NUMBERS = {int, float}
SEE_HELP = "`saccade train --help-all` explains every setting"
C = TypeVar("C", bound=Config)


def build(kind: type[C], values: Mapping[str, Any], *, where: str, prefix: str = "") -> C:
    """Build a config from plain data; an error names the key, after the prefix of its group, and the nearest one."""
    try:
        return kind.model_validate(underscored(values))
    except ValidationError as error:
        raise describe_errors(kind, error, where, prefix) from None


def underscored(values: Any) -> Any:
    """Return plain data with keys such as `learning-rate` written as `learning_rate`."""
    if isinstance(values, Mapping):
        return {str(key).replace("-", "_"): underscored(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [underscored(value) for value in values]
    return values


def describe_errors(kind: type[BaseModel], error: ValidationError, where: str, prefix: str = "") -> SaccadeError:
    """Describe the first five validation errors in one SaccadeError."""
    lines: list[str] = []
    advice: str | None = None
    for detail in error.errors()[:5]:
        path = [str(part) for part in detail["loc"]]
        dotted = shown(hyphenated(prefix + ".".join(path)))
        match detail["type"]:
            case "extra_forbidden":
                lines.append(f"unknown setting {dotted}")
                advice = advice or suggest_setting(kind, path, prefix)
            case "no_value":
                lines.append(f"setting {dotted} needs a value")
            case "missing" if path[-1].isdecimal():  # an item of a list
                lines.append(f"setting {shown(hyphenated(prefix + '.'.join(path[:-1])))} has too few values")
                advice = advice or "separate the values by commas"
            case "too_long":
                lines.append(f"setting {dotted} has too many values")
            case "missing":
                lines.append(f"setting {dotted} is missing")
            case "value_error" if isinstance(detail["input"], Mapping):  # a conflict between settings
                message = detail["msg"].removeprefix("Value error, ")
                lines.append(f"{dotted}: {message}" if path else message)
            case _:
                message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
                lines.append(f"setting {dotted} cannot be {shown(detail['input'])}: {message}")
                if detail["type"] == "literal_error":
                    guess = nearest(str(detail["input"]), re.findall("'([^']+)'", detail["ctx"]["expected"]))
                    advice = advice or (f"did you mean '{guess}'?" if guess else None)
    return SaccadeError("; ".join(lines), where=where, hint=advice or SEE_HELP)


def suggest_setting(kind: type[BaseModel], path: list[str], prefix: str) -> str:
    """Return advice on an unknown setting: the one that other toolkits call so, or the nearest one, and all names."""
    name, valid = hyphenated(path[-1]), siblings(kind, path)
    group = hyphenated(prefix + "".join(f"{part}." for part in path[:-1]))
    known = [*(f"{group}{one}" for one in valid), *(f"{prefix}{one}" for one in setting_names(kind))]
    aliases = [option.removeprefix("--") for option in options_for_alias(name, [f"--{one}" for one in known])]
    if not aliases:
        return did_you_mean(name, valid)
    listed = "' or '".join(aliases)
    return f"did you mean '{listed}'? (valid: {', '.join(sorted(valid))})"


def siblings(kind: type[BaseModel], path: list[str]) -> list[str]:
    """Return the valid names for the last part of a path."""
    for part in path[:-1]:
        nested = kind.model_fields.get(part)
        inner = nested and config_type(nested.annotation)
        if not inner:
            break
        kind = inner
    return [hyphenated(name) for name in kind.model_fields]


def setting_names(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of all settings, those of nested configs included."""
    names: list[str] = []
    for name, info in kind.model_fields.items():
        inner = config_type(info.annotation)
        dotted = f"{prefix}{hyphenated(name)}"
        names += setting_names(inner, f"{dotted}.") if inner else [dotted]
    return names


def config_type(annotation: Any) -> type[Config] | None:
    """Return the config class in an annotation such as `DataConfig` or `DataConfig | None`."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Config):
            return candidate
    return None


def hyphenated(name: str) -> str:
    """Return a key with hyphens, as on the command line."""
    return name.replace("_", "-")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a mapping from a YAML file; aliases, tags and duplicate keys are errors."""
    advice = "a recipe is a YAML mapping with the keys model, data, training …"
    try:
        values = RecipeLoader(read_text(path, MAX_YAML_BYTES)).get_single_data()
        check_plain(values)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise InputFileError(what, where=str(path), hint="name an existing YAML recipe") from None
    except yaml.MarkedYAMLError as error:
        where = f"{path}, line {error.problem_mark.line + 1}" if error.problem_mark else str(path)
        raise InputFileError(f"invalid YAML: {error.problem}", where=where, hint=advice) from None
    except yaml.reader.ReaderError as error:
        what = f"contains the character U+{error.character:04X}, which is invalid in YAML"
        raise InputFileError(what, where=str(path), hint=advice) from None
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "is nested too deep"
        raise InputFileError(what, where=str(path), hint=advice) from None
    if not isinstance(values, dict):
        raise InputFileError("contains no settings", where=str(path), hint=advice)
    return underscored(values)  # type: ignore[no-any-return]


def write_yaml(config: Config, path: str | Path) -> None:
    """Write all settings to a YAML file; reading it gives an equal config."""
    values = config.model_dump(mode="json")
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if YAML_LINE_BREAKS & set(text):  # the library does not escape them, but reads them as spaces
        text = yaml.safe_dump(values, sort_keys=False)
    if len(text.encode("utf-8")) > MAX_YAML_BYTES:
        raise SaccadeError("the config is too large", where=str(path), hint="name fewer files")
    Path(path).write_text(text, encoding="utf-8")


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Parse `--training.learning-rate 7e-4 --model.norm=pre` into a nested mapping of strings.

    `--data.joint` without a value means true. Values stay strings; the typed config converts them.
    """
    nested: dict[str, Any] = {}
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise UsageError(f"unexpected argument '{argument}'", hint="options start with --; see --help")
        key, equals, value = argument[2:].partition("=")
        if not equals:
            value = pending.pop(0) if pending and not pending[0].startswith("--") else NoValue("true")
        insert(nested, key, value)
    return nested


def insert(nested: dict[str, Any], dotted: str, value: Any) -> None:
    """Insert the value of a dotted key into a nested mapping."""
    parts = dotted.replace("-", "_").split(".")
    for part in parts[:-1]:
        inner = nested.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(f"'{part}' is both a value and a group in '--{dotted}'")
        nested = inner
    nested[parts[-1]] = value


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; `changes` take precedence."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
