"""Errors that a person can act on: what happened, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMES = 60  # valid ones that a message lists
LONGEST_NAME = 80  # characters of one that it shows


class SaccadeError(Exception):
    """A fault in what the user gave: input files, settings, a model folder. The command exits with 1."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None) -> None:
        # Both may quote a file that anybody wrote: they stay in one line.
        self.what = printable(what)
        self.where = None if where is None else printable(where)
        self.do = do
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        return text if self.do is None else f"{text}\n  {self.do}"

    @property
    def one_line(self) -> str:
        """The same in one line."""
        return "; ".join(line.strip() for line in str(self).splitlines())


class UsageError(SaccadeError):
    """A command that cannot be understood: an unknown option, a missing one. The command exits with 2."""

    exit_code = 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, in Python or in torch, which has no class of its own for it on the CPU."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def printable(text: str, *, keep: str = "") -> str:
    """A text that cannot command the terminal, but for the characters to keep: it may come from a hostile file."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that looks most like `name`, if one looks alike at all."""
    matches = difflib.get_close_matches(name[:LONGEST_NAME], list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """What to do about an unknown name: the nearest valid one first, then all of them."""
    valid = sorted(valid)
    shown = [printable(option[:LONGEST_NAME]) for option in valid[:MOST_NAMES]]  # a file may have many, and odd ones
    guess = nearest(name, shown)
    listing = "valid: " + ", ".join(shown) + (f" and {len(valid) - MOST_NAMES:,} more" * (len(valid) > MOST_NAMES))
    return f"did you mean '{guess}'? ({listing})" if guess else listing
