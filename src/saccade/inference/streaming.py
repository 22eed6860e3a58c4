"""Any number of texts as windows: enough of them to sort by length, few enough to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from saccade.errors import SaccadeError

AtHand = Callable[[], bool]
"""Whether the next text can be had without waiting for it; where nobody knows, it cannot."""


class Window(NamedTuple):
    """Texts that are translated together."""

    first: int  # the place of the first one in the user's input
    texts: list[str]
    prefixes: list[str] | None


def read_windows(
    texts: Iterable[str], prefixes: Iterable[str] | None, size: int, at_hand: AtHand | None = None
) -> Iterator[Window | None]:
    """The texts in windows, with a prefix for each if there are any.

    Where `at_hand` says that the next text has to be waited for, there comes None instead, once a window: time to hand
    out what is finished.
    """
    lines, starts = iter(texts), None if prefixes is None else iter(prefixes)
    first, told = 0, False
    window: list[str] = []
    while True:
        if at_hand is not None and not told and not at_hand():
            told = True
            yield None
        line = next(lines, None)
        if line is not None:
            window.append(line)
        if window and (line is None or len(window) == size):
            yield Window(first, window, forced(starts, first, len(window)))
            first, window, told = first + len(window), [], False
        if line is None:
            return


def forced(starts: Iterator[str] | None, first: int, count: int) -> list[str] | None:
    """The next prefixes, as many as there are texts."""
    if starts is None:
        return None
    found = [prefix for _, prefix in zip(range(count), starts, strict=False)]
    if len(found) < count:
        raise SaccadeError(f"{first + len(found)} prefixes for more sources", do="give one prefix a line")
    return found
