"""Reading small untrusted files: limited size, strict parsing, no code execution.

The functions raise OSError if a file cannot be read, and ValueError or RecursionError for invalid content; the caller
turns them into an error with advice.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MAX_DEPTH = 16  # nesting levels of plain data; the files that Saccade writes have at most five


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; a pipe or a device might not end."""
    with open(path, "rb", opener=open_nonblocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        raw = file.read(min(status.st_size, limit) + 1)
    if len(raw) > limit:
        raise ValueError(f"larger than the limit of {limit:,} bytes")
    return raw


def read_text(path: str | Path, limit: int) -> str:
    """Read the UTF-8 text of a regular file of at most `limit` bytes."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start + 1:,})") from None


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file without blocking: opening a pipe without a writer would wait forever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def parse_json(text: str) -> Any:
    """Parse JSON; duplicate keys, non-finite numbers and lone surrogates are errors."""
    values = json.loads(
        text, object_pairs_hook=reject_duplicate_keys, parse_constant=reject_constant, parse_float=parse_finite_float
    )
    if "\\u" in text:  # only an escape sequence can produce a lone surrogate
        check_surrogates(json.dumps(values, ensure_ascii=False))
    return values


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; json.loads would silently take the last of two equal keys."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {shown(twice)}")
    return values


def reject_constant(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python accepts but JSON does not have."""
    raise ValueError(f"{name} is not a JSON number")


def parse_finite_float(digits: str) -> float:
    """Parse a float; a number such as 1e999 is an error, because it would be infinite."""
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def check_surrogates(text: str) -> None:
    """Reject lone surrogates, except those that encode non-UTF-8 bytes of file names."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("contains a lone surrogate") from None


def check_plain(values: Any) -> None:
    """Reject plain data that is nested too deep, and strings with NUL characters or lone surrogates."""
    level = [values]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, str):
                check_surrogates(value)
                if "\0" in value:
                    raise ValueError("contains a NUL character")
            elif isinstance(value, Mapping):
                inner += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                inner += value
        if not inner:
            return
        level = inner
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def shown(value: Any, limit: int = 80) -> str:
    """Return the repr of a value for an error message, shortened to `limit` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not print integers of more than some thousand digits
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= limit else f"{text[:limit]}…"
