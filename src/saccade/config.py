"""Typed configuration: to and from YAML, dotted overrides, unknown keys refused with the nearest valid one."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from saccade.errors import SaccadeError, UsageError, did_you_mean
from saccade.strict_yaml import RecipeLoader
from saccade.untrusted_files import check_plain, read_text, shown

LARGEST = 2**18  # bytes of a YAML file, enough for some thousand paths; its parser takes some seconds for this many

LINE_ENDS = {"\x85", "\u2028", "\u2029"}  # that YAML has beside the line feed


class Config(BaseModel):
    """The base of every part's settings: frozen, typed, and without room for a misspelt key.

    The docstring under a field is its help text. YAML and the command line write keys with hyphens or underscores.
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
    def truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true where a number is asked for; it would be read as 1."""
        asked = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and (asked in NUMBERS or set(typing.get_args(asked)) & NUMBERS):
            raise ValueError("it is a number, not true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def numbers_have_an_end(cls, value: Any) -> Any:
        """Refuse whole numbers that no machine computes with."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("it is too large")
        return value


NUMBERS = {int, float}
C = TypeVar("C", bound=Config)


def build(kind: type[C], values: Mapping[str, Any], *, where: str) -> C:
    """A config from plain data; every fault becomes one error that names the key and the nearest valid one."""
    try:
        return kind.model_validate(underscored(values))
    except ValidationError as error:
        raise explain(kind, error, where) from None


def underscored(values: Any) -> Any:
    """The same plain data with `learning-rate` written as `learning_rate`."""
    if isinstance(values, Mapping):
        return {str(key).replace("-", "_"): underscored(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [underscored(value) for value in values]
    return values


def explain(kind: type[BaseModel], error: ValidationError, where: str) -> SaccadeError:
    """The first faults of a validation, in a person's words."""
    lines: list[str] = []
    advice: str | None = None
    for fault in error.errors()[:5]:
        path = [str(part) for part in fault["loc"]]
        dotted = shown(hyphenated(".".join(path)))
        if fault["type"] == "extra_forbidden":
            lines.append(f"unknown setting {dotted}")
            if advice is None:
                advice = did_you_mean(path[-1].replace("_", "-"), siblings(kind, path))
        elif fault["type"] == "missing":
            lines.append(f"setting {dotted} is missing")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "value_error" and isinstance(fault["input"], Mapping):  # they do not fit together
                lines.append(f"{dotted}: {message}" if path else message)
            else:
                lines.append(f"setting {dotted} cannot be {shown(fault['input'])}: {message}")
    return SaccadeError("; ".join(lines), where=where, do=advice or "`saccade train --help` explains every setting")


def siblings(kind: type[BaseModel], path: list[str]) -> list[str]:
    """The valid names beside the last part of a path."""
    for part in path[:-1]:
        nested = kind.model_fields.get(part)
        inner = nested and config_type(nested.annotation)
        if not inner:
            break
        kind = inner
    return [hyphenated(name) for name in kind.model_fields]


def config_type(annotation: Any) -> type[Config] | None:
    """The config class inside an annotation such as `DataConfig` or `DataConfig | None`."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Config):
            return candidate
    return None


def hyphenated(name: str) -> str:
    """A key as people write it."""
    return name.replace("_", "-")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file of plain data; aliases, tags and doubled keys are refused."""
    advice = "a recipe is a YAML mapping of model, data, training …"
    try:
        values = RecipeLoader(read_text(path, LARGEST)).get_single_data()
        check_plain(values)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise SaccadeError(what, where=str(path), do="name an existing YAML recipe") from None
    except yaml.MarkedYAMLError as error:
        where = f"{path}, line {error.problem_mark.line + 1}" if error.problem_mark else str(path)
        raise SaccadeError(f"is not YAML: {error.problem}", where=where, do=advice) from None
    except yaml.reader.ReaderError as error:
        what = f"holds the character U+{error.character:04X}, which no YAML file may hold"
        raise SaccadeError(what, where=str(path), do=advice) from None
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "is nested too deep"
        raise SaccadeError(what, where=str(path), do=advice) from None
    if not isinstance(values, dict):
        raise SaccadeError("holds no settings", where=str(path), do=advice)
    return underscored(values)  # type: ignore[no-any-return]


def write_yaml(config: Config, path: str | Path) -> None:
    """Write every resolved setting; reading the file gives an equal config."""
    values = config.model_dump(mode="json")
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if LINE_ENDS & set(text):  # the library leaves them bare, and reads them as spaces
        text = yaml.safe_dump(values, sort_keys=False)
    if len(text.encode("utf-8")) > LARGEST:
        raise SaccadeError("the settings are too long to be read again", where=str(path), do="name fewer files")
    Path(path).write_text(text, encoding="utf-8")


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """`--training.learning-rate 7e-4 --model.norm=pre` as a nested mapping of strings.

    A bare `--data.joint` means true. Values stay strings: the typed config converts them, or says why it cannot.
    """
    nested: dict[str, Any] = {}
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise UsageError(f"unexpected argument '{argument}'", do="options start with --; see --help")
        key, equals, value = argument[2:].partition("=")
        if not equals:
            value = pending.pop(0) if pending and not pending[0].startswith("--") else "true"
        insert(nested, key, value)
    return nested


def insert(nested: dict[str, Any], dotted: str, value: Any) -> None:
    """Put one dotted key into a nested mapping."""
    parts = dotted.replace("-", "_").split(".")
    for part in parts[:-1]:
        inner = nested.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(f"'{part}' is both a value and a group in '--{dotted}'")
        nested = inner
    nested[parts[-1]] = value


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top, group by group."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def describe(kind: type[Config], prefix: str = "") -> list[tuple[str, str, str]]:
    """(dotted option, default, help) of every setting: what `--help` prints."""
    rows: list[tuple[str, str, str]] = []
    for name, info in kind.model_fields.items():
        inner = config_type(info.annotation)
        dotted = f"{prefix}{hyphenated(name)}"
        if inner:
            rows += describe(inner, f"{dotted}.")
        else:
            default = "" if info.is_required() else str(info.get_default(call_default_factory=True))
            rows.append((dotted, default, " ".join((info.description or "").split())))
    return rows
