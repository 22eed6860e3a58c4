"""Checks of the arguments of the Python API: an error says what was given, what is expected, and what to write."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import ParamSpec, TypeGuard, TypeVar

from saccade.errors import SaccadeError, did_you_mean
from saccade.untrusted_files import shown

P = ParamSpec("P")
R = TypeVar("R")


def check_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: a call that does not fit its signature raises SaccadeError instead of TypeError."""
    signature = inspect.signature(function)
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    title = function.__qualname__.removesuffix(".__init__")
    form = f"{title}({', '.join(map(str, (p.replace(annotation=p.empty) for p in parameters)))})"

    def call_error(arguments: tuple[object, ...], keywords: Mapping[str, object]) -> SaccadeError | None:
        try:
            signature.bind(*arguments, **keywords)
        except TypeError as error:
            takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
            unknown = [] if takes_any else [name for name in keywords if name not in names]
            if unknown:
                return SaccadeError(f"{title} has no argument '{unknown[0]}'", hint=did_you_mean(unknown[0], names))
            return SaccadeError(f"{title}: {error}", hint=f"call it as {form}")
        return None

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except TypeError:
            # Binding before every call would add a tenth to the time of one sentence.
            found = call_error(arguments, keywords)
            if found is None:
                raise
            raise found from None

    return checked


def described(value: object) -> str:
    """Return a value and its type, as an error shows them."""
    return f"{shown(value)} ({type(value).__name__})"


def check_text(value: object, name: str, index: int | None = None, *, hint: str = "give a string") -> None:
    """Raise an error unless a value is a string; `index` is its position in a list."""
    if isinstance(value, str):
        return
    if isinstance(value, bytes | bytearray):
        hint = 'decode bytes first: data.decode("utf-8")'
    elif value is None and index is not None:
        hint = "leave it out, or give an empty string, whose output is empty"
    which = name if index is None else f"{name}[{index}]"
    raise SaccadeError(f"{which} is {described(value)}, not a string", hint=hint)


def check_texts(values: object, name: str) -> None:
    """Raise an error unless a value may hold texts in order; `read_texts` checks its items."""
    hint = "give a list of strings"
    if isinstance(values, str):
        hint += f": [{shown(values)}]"
    elif isinstance(values, Mapping):
        hint += ": list(values.values()) or list(values)"
    elif isinstance(values, Set):
        hint += ": a set has no order"
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or not is_iterable(values):
        raise SaccadeError(f"{name} is {described(values)}, not a list of strings", hint=hint)


def read_texts(values: Iterable[str], name: str) -> Iterator[str]:
    """Yield texts; an item that is not a string is an error that names its index."""
    for index, value in enumerate(values):
        check_text(value, name, index)
        yield value


def list_texts(values: Iterable[str], name: str) -> list[str]:
    """Return texts as a list; an error names what is not a string."""
    check_texts(values, name)
    return list(read_texts(values, name))


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a value is a path: a string or an `os.PathLike` of one."""
    return isinstance(value, str) or (isinstance(value, os.PathLike) and isinstance(os.fspath(value), str))


def path_of(value: object, name: str, *, hint: str = "give a string or a pathlib.Path") -> Path:
    """Return an argument as a path."""
    if is_path(value):
        return Path(value)
    if isinstance(value, bytes):
        hint = "decode bytes first: os.fsdecode(path)"
    raise SaccadeError(f"{name} is {described(value)}, not a path", hint=hint)


def check_choice(value: object, name: str, valid: Iterable[str]) -> None:
    """Raise an error unless a value is one of some names."""
    valid = list(valid)
    check_text(value, name, hint=f"valid: {', '.join(valid)}")
    if value not in valid:
        raise SaccadeError(f"unknown {name} '{value}'", hint=did_you_mean(str(value), valid))


def check_numbers(values: object, name: str) -> None:
    """Raise an error unless a value is a list of real numbers."""
    hint = "give a list of numbers, such as [2, 1]"
    if isinstance(values, str | bytes | Mapping | Set) or not is_iterable(values):
        raise SaccadeError(f"{name} is {described(values)}, not a list of numbers", hint=hint)
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise SaccadeError(f"{name}[{index}] is {described(value)}, not a number", hint=hint)


def check_mapping(value: object, name: str, *, hint: str) -> None:
    """Raise an error unless a value is a mapping with strings as keys."""
    if not isinstance(value, Mapping):
        raise SaccadeError(f"{name} is {described(value)}, not a mapping", hint=hint)
    for key in value:
        if not isinstance(key, str):
            raise SaccadeError(f"{name} has the key {described(key)}, not a string", hint=hint)


def is_iterable(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether a value can be iterated."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True
