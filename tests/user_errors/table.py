"""Tables of tries with user errors: one command or one Python expression per line.

2  translate model --beam many             exit code, command
1* translate missing                       a star: also part of `make test`
1  translate model < latin1.txt            standard input from a file
0  info model --json new.json => new.json  files and folders that the command may create or change
#  a comment
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Try:
    """One row of a table: what is tried, and what must happen."""

    text: str
    code: int
    fast: bool = False
    words: tuple[str, ...] = ()
    stdin: str | None = None
    may_write: tuple[str, ...] = ()


def read_table(name: str) -> list[Try]:
    """Read a table of commands."""
    return [parse_try(line) for line in rows(name)]


def rows(name: str) -> list[str]:
    """Return the lines of a table without comments and blank lines."""
    lines = (TABLES / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def parse_try(line: str) -> Try:
    """Parse one row."""
    code, _, text = line.partition(" ")
    command, _, written = text.partition(" => ")
    words = shlex.split(command)
    stdin = None
    if "<" in words:
        position = words.index("<")
        stdin = words[position + 1]
        del words[position : position + 2]
    exit_code = int(code.removesuffix("*"))
    return Try(text.strip(), exit_code, code.endswith("*"), tuple(words), stdin, tuple(written.split()))
