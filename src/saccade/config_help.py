"""Help on settings: type, choices, range, default and help text of every field of a config."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from saccade.config import Config, config_type, hyphenated


class HelpGroup(NamedTuple):
    """A section of the help; as an annotation of a field, it puts the field (or the nested config) into the section."""

    title: str


class HelpType(NamedTuple):
    """A type as the help shows it, where the annotation of a field does not say it: choices that a validator checks."""

    text: str


class SettingHelp(NamedTuple):
    """What the help shows of one setting."""

    name: str  # dotted, with hyphens: "training.max-steps"
    type: str  # "int", "bpe|char", "str,…"
    text: str
    default: str = ""  # empty if there is none
    range: str = ""  # "x>=1"
    group: str | None = None  # title of its HelpGroup

    @property
    def remarks(self) -> str:
        """Default and range in brackets, as the help shows them."""
        parts = [f"default: {self.default}" if self.default else "", self.range]
        listed = "; ".join(part for part in parts if part)
        return f"[{listed}]" if listed else ""


def describe(
    kind: type[Config], values: Mapping[str, Any] | None = None, prefix: str = "", group: str | None = None
) -> list[SettingHelp]:
    """Return the help on every setting of a config; `values` are shown as defaults instead of those of the fields."""
    found: list[SettingHelp] = []
    for name, info in kind.model_fields.items():
        inner = config_type(info.annotation)
        dotted = f"{prefix}{hyphenated(name)}"
        section = next((note.title for note in info.metadata if isinstance(note, HelpGroup)), group)
        given = (values or {}).get(name)
        if inner:
            found += describe(inner, given, f"{dotted}.", section)
            continue
        if given is None and not info.is_required():
            given = info.get_default(call_default_factory=True)
        text = " ".join((info.description or "").split())
        notes = [*info.metadata, *nested_metadata(info.annotation)]
        kind_shown = next((note.text for note in notes if isinstance(note, HelpType)), type_name(info.annotation))
        found.append(SettingHelp(dotted, kind_shown, text, format_value(given), range_of(notes), section))
    return found


def type_name(annotation: Any) -> str:
    """Return a type as the help shows it: `int`, `true|false`, `bpe|char`, `str,…`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return "|".join(type_name(one) for one in arguments if one is not type(None))
    if origin is Literal:
        return "|".join(str(choice) for choice in arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"{type_name(arguments[0])},…"
        return ",".join(type_name(one) for one in arguments)
    if annotation is bool:
        return "true|false"
    return annotation.__name__ if annotation in (int, float, str) else "str"


def nested_metadata(annotation: Any) -> Iterator[Any]:
    """Yield the metadata of the items of an annotation such as `tuple[Annotated[float, Field(gt=0)], ...]`."""
    if typing.get_origin(annotation) is typing.Annotated:
        for note in annotation.__metadata__:
            yield from note.metadata if isinstance(note, FieldInfo) else (note,)
    for argument in typing.get_args(annotation):
        yield from nested_metadata(argument)


def range_of(metadata: Iterable[Any]) -> str:
    """Return the range of a number as the option parser shows it: `x>=1`, `0<=x<1`."""
    lower: tuple[Any, str] | None = None
    upper = ""
    for note in metadata:
        match note:
            case Ge():
                lower = (note.ge, "=")
            case Gt():
                lower = (note.gt, "")
            case Le():
                upper = f"<={note.le}"
            case Lt():
                upper = f"<{note.lt}"
    if lower is None:
        return f"x{upper}" if upper else ""
    bound, equals = lower
    return f"{bound}<{equals}x{upper}" if upper else f"x>{equals}{bound}"


def format_value(value: Any) -> str:
    """Return a value in command-line syntax; None and an empty list are empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(format_value(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
