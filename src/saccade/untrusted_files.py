"""Small files that anybody may have written: read up to a bound, parsed strictly, and never run.

The functions raise OSError where the system refuses a file, and ValueError or RecursionError for what is in it; whoever
calls them knows what the file should be and says what to do.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

DEEPEST = 16  # levels of groups in plain data; what we write has at most five


def read_text(path: str | Path, most: int) -> str:
    """The UTF-8 text of a regular file of at most `most` bytes; a pipe or a device might never end."""
    with open(path, "rb", opener=without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        raw = file.read(min(status.st_size, most) + 1)
    if len(raw) > most:
        raise ValueError(f"is larger than the {most:,} bytes that such a file may have")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start + 1:,})") from None


def without_waiting(path: str, flags: int) -> int:
    """Open a file, and a pipe that nobody writes to at once instead of never."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def parse_json(text: str) -> Any:
    """The value in a JSON text: each key once, every number finite, every text whole."""
    values = json.loads(
        text, object_pairs_hook=each_key_once, parse_constant=refuse_constant, parse_float=finite_number
    )
    if "\\u" in text:  # only an escape can spell half of a surrogate pair
        check_whole(json.dumps(values, ensure_ascii=False))
    return values


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; where a key stands twice, the last one would silently win."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} stands twice")
    return values


def refuse_constant(name: str) -> NoReturn:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(f"{name} is no JSON number")


def finite_number(digits: str) -> float:
    """A number with a point or an exponent; 1e999 would be infinite."""
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def check_whole(text: str) -> None:
    """Refuse a lone surrogate, but for the bytes of file names that are not UTF-8."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair") from None


def check_plain(values: Any) -> None:
    """Refuse groups within groups without end, and texts that no file name and no terminal can hold."""
    level = [values]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, str):
                check_whole(value)
                if "\0" in value:
                    raise ValueError("a text holds a NUL character")
            elif isinstance(value, Mapping):
                inner += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                inner += value
        if not inner:
            return
        level = inner
    raise ValueError(f"is nested more than {DEEPEST} levels deep")


def shown(value: Any, most: int = 80) -> str:
    """A value as an error message shows it: not longer than a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes out no integer of more than some thousand digits
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= most else f"{text[:most]}…"
