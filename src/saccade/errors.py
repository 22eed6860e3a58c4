"""Errors that a person can act on: what happened, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SaccadeError(Exception):
    """A fault in what the user gave: input files, settings, a model folder. The command exits with 1."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None) -> None:
        self.what = what
        self.where = where
        self.do = do
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        return text if self.do is None else f"{text}\n  {self.do}"


class UsageError(SaccadeError):
    """A command that cannot be understood: an unknown option, a missing one. The command exits with 2."""

    exit_code = 2


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that looks most like `name`, if one looks alike at all."""
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """What to do about an unknown name: the nearest valid one first, then all of them."""
    valid = sorted(valid)
    guess = nearest(name, valid)
    listing = "valid: " + ", ".join(valid)
    return f"did you mean '{guess}'? ({listing})" if guess else listing
