"""Errors for users: what happened, where, and what to do."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

from saccade.toolkit_aliases import value_for_alias

MAX_NAMES = 60  # valid names listed in a message
MAX_NAME_LENGTH = 80  # characters of a name shown in a message

SYSTEM_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or choose another path",
    errno.EDQUOT: "your quota is used up: free some space, or choose another path",
    errno.EACCES: "check the permissions, or choose another path",
    errno.EPERM: "check the permissions, or choose another path",
    errno.EROFS: "the file system is read-only: choose another path",
    errno.ENOENT: "check the path; it is relative to the current directory",
    errno.EISDIR: "name a file, not a directory",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EEXIST: "something else is at this path: choose another path",
    errno.ELOOP: "the path is a symbolic link to itself: choose another path",
    errno.EBADF: "it is closed: redirect it to a file, or leave out <&- and >&-",
}
"""What to do about errors of the operating system."""


class SaccadeError(Exception):
    """An error in the user's input: files, settings, a model folder. The command exits with code 1."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        # `what` and `where` may quote an untrusted file, so control characters are escaped.
        self.what = printable(what)
        self.where = None if where is None else printable(where)
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        return text if self.hint is None else f"{text}\n  {self.hint}"

    @property
    def one_line(self) -> str:
        """The message in one line."""
        return "; ".join(line.strip() for line in str(self).splitlines())


class UsageError(SaccadeError):
    """An invalid command line: an unknown or missing option. The command exits with code 2."""

    exit_code = 2


class InputFileError(SaccadeError):
    """An error in a file or folder that the user names, on the command line too. The command exits with code 1."""


def system_advice(error: OSError) -> str | None:
    """Return what to do about an error of the operating system; None if there is no advice for it."""
    return SYSTEM_ADVICE.get(error.errno or 0)


def not_written(path: object, error: OSError) -> SaccadeError:
    """Return the error for a file or folder that cannot be written."""
    hint = system_advice(error) or "choose another path"
    return SaccadeError(f"cannot be written: {error.strerror or error}", where=str(path), hint=hint)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; torch has no exception class for it on the CPU."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def printable(text: str, *, keep: str = "") -> str:
    """Escape control characters, except those in `keep`: the text may come from an untrusted file."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that other toolkits call `name`, else the most similar one, or None if none is similar."""
    names = list(valid)
    matches = difflib.get_close_matches(name[:MAX_NAME_LENGTH], names, n=1, cutoff=0.6)
    return value_for_alias(name, names) or (matches[0] if matches else None)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return advice about an unknown name: the nearest valid name, then the list of all valid names."""
    valid = sorted(valid)
    shown = [printable(option[:MAX_NAME_LENGTH]) for option in valid[:MAX_NAMES]]  # names may come from untrusted files
    guess = nearest(name, shown)
    listing = "valid: " + ", ".join(shown) + (f" and {len(valid) - MAX_NAMES:,} more" * (len(valid) > MAX_NAMES))
    return f"did you mean '{guess}'? ({listing})" if guess else listing
