"""Mutations: small damage to bytes, to values in JSON and to lines of YAML, drawn from a seeded generator."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

SPECIAL_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 10**4, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, -0.5, 1e-300, 1e300, 1.0, -0.0),
    *(
        "",
        " ",
        "a",
        "true",
        "no",
        "nan",
        "inf",
        "1e9",
        "0x10",
        "16",
        "null",
        "\0",
        "\u202e",
        "\ud800",
        "\x1b[2J",
        "é" * 99,
    ),
    *(
        "../../etc/passwd",
        "/dev/zero",
        "os.system",
        "__class__",
        "{0}",
        "%s",
        "\n",
        "transformer",
        "bpe",
        "post",
        "pre",
    ),
    *([], {}, [[]], [None], ["a", "b"], {"a": {"b": {}}}, [0] * 50),
]
"""Values that may break a parser."""

SCALARS = [
    *("~", "null", "true", "no", "off", "0", "-1", "1", "1e9", "1.0e+400", ".inf", ".nan", "0o7", "010", "1:30", "1_0"),
    *("2020-01-01", "'", '"', '"\\0"', '"\\ud800"', "[", "]", "{", "}", "[[[[", "{a: b}", "[1, 2]", "|", ">", "- a"),
    *(
        "&a x",
        "*a",
        "!!str x",
        "!!python/name:os.system",
        "!x y",
        "? a",
        ": b",
        "<<",
        "@",
        "`",
        "%",
        "---",
        "...",
        "#",
        "\t",
    ),
    *("../../x", "/dev/zero", "transformer", "os.system", "9" * 400, "x" * 400, "\u202e", "\x85", "\ufeff"),
]
"""Scalars for lines of YAML."""


def damage(raw: bytes, generator: Random) -> bytes:
    """Flip a bit, change a byte or truncate, as disks and networks do."""
    position = generator.randrange(len(raw))
    kind = generator.choice(("flip", "flip", "byte", "cut"))
    if kind == "cut":
        return raw[:position]
    damaged = bytearray(raw)
    damaged[position] ^= 1 << generator.randrange(8) if kind == "flip" else generator.randrange(1, 256)
    return bytes(damaged)


def mutate_bytes(raw: bytes, generator: Random) -> bytes:
    """Make one to three changes of bytes or blocks of bytes."""
    for _ in range(generator.randint(1, 3)):
        raw = change_block(raw, generator)
    return raw


def change_block(raw: bytes, generator: Random) -> bytes:
    """Make one change: damage, or remove, repeat, move, overwrite or insert a block."""
    if not raw:
        return bytes([generator.randrange(256)])
    first = generator.randrange(len(raw))
    last = min(len(raw), first + generator.choice((1, 2, 4, 8, 64, 512)))
    kind = generator.choice(("damage", "damage", "remove", "repeat", "move", "blank", "insert", "head"))
    if kind == "damage":
        return damage(raw, generator)
    if kind == "remove":
        return raw[:first] + raw[last:]
    if kind == "repeat":
        return raw[:last] + raw[first:last] * generator.choice((1, 1, 10, 100)) + raw[last:]
    if kind == "move":
        rest = raw[:first] + raw[last:]
        position = generator.randrange(len(rest) + 1)
        return rest[:position] + raw[first:last] + rest[position:]
    if kind == "blank":
        return raw[:first] + bytes([generator.choice((0, 32, 255))]) * (last - first) + raw[last:]
    if kind == "insert":
        return raw[:first] + generator.randbytes(last - first) + raw[first:]
    return generator.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n", b"\x1f\x8b", b"{", b"[")) + raw


def mutate_json(values: Any, generator: Random) -> Any:
    """Make one or two changes: another value, a key renamed, removed or added, entries exchanged."""
    values = copy.deepcopy(values)
    for _ in range(generator.choice((1, 1, 1, 2))):
        holders = list(groups_of(values))
        if holders:
            change_group(generator.choice(holders), generator)
    return values


def groups_of(values: Any) -> list[Any]:
    """Return all non-empty objects and lists in a value, itself included."""
    found, pending = [], [values]
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list) and value:
            found.append(value)
            pending += value.values() if isinstance(value, dict) else value
    return found


def change_group(group: Any, generator: Random) -> None:
    """Change an object or a list in place."""
    key = generator.choice(list(group)) if isinstance(group, dict) else generator.randrange(len(group))
    other = generator.choice(list(group)) if isinstance(group, dict) else generator.randrange(len(group))
    kind = generator.choice(("nasty", "nasty", "near", "near", "remove", "exchange", "rename", "add"))
    if kind == "nasty":
        group[key] = copy.deepcopy(generator.choice(SPECIAL_VALUES))
    elif kind == "near":
        group[key] = near(group[key], generator)
    elif kind == "remove":
        del group[key]
    elif kind == "exchange":
        group[key], group[other] = group[other], group[key]
    elif isinstance(group, list):
        group.insert(key, copy.deepcopy(group[other]))
    elif kind == "rename":
        group[generator.choice((f"{key}s", key.upper(), key[:-1], key.replace("_", "-"), "", "\0"))] = group.pop(key)
    else:
        group[generator.choice(("a", "__class__", f"{key}_", f"{key}\u200b"))] = copy.deepcopy(group[other])


def near(value: Any, generator: Random) -> Any:
    """Return a value close to the given one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + generator.choice((-1, 1, 1000, -value, value))
    if isinstance(value, float):
        return value * generator.choice((-1.0, 0.5, 1.0000001, 1e10))
    if isinstance(value, str):
        position = generator.randrange(len(value) + 1)
        return (
            value[:position]
            + generator.choice(("", " ", "x", "\u0301", "\n"))
            + value[position + generator.randint(0, 1) :]
        )
    return [value]


def mutate_lines(text: str, generator: Random) -> str:
    """Make one to three changes of YAML lines: another value or indent, or a line repeated, removed or moved."""
    lines = text.split("\n")
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(len(lines))
        line = lines[position]
        key, colon, _ = line.partition(":")
        kind = generator.choice(("value", "value", "value", "indent", "repeat", "remove", "move", "tear", "put"))
        if kind == "value" and colon:
            lines[position] = f"{key}: {generator.choice(SCALARS)}"
        elif kind == "indent":
            lines[position] = " " * generator.choice((0, 1, 2, 4)) + line.lstrip()
        elif kind == "repeat":
            lines.insert(generator.randrange(len(lines) + 1), line)
        elif kind == "remove" and len(lines) > 1:
            del lines[position]
        elif kind == "move":
            lines.insert(generator.randrange(len(lines)), lines.pop(position))
        elif kind == "tear":
            at = generator.randrange(len(line) + 1)
            lines[position] = line[:at] + generator.choice(SCALARS) + line[at:]
        else:
            lines.insert(position, generator.choice(SCALARS))
    return "\n".join(lines)
