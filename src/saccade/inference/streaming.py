"""Windows of an input stream: enough texts to sort by length, few enough to hold in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from saccade.errors import SaccadeError

InputReady = Callable[[], bool]
"""Whether the next text can be read without blocking; False if that is unknown."""


class Window(NamedTuple):
    """Texts that are translated together."""

    first_index: int  # of the first text, in the user's input
    texts: list[str]
    prefixes: list[str] | None


def read_windows(
    texts: Iterable[str], prefixes: Iterable[str] | None, size: int, input_ready: InputReady | None = None
) -> Iterator[Window | None]:
    """Yield the texts in windows of `size`, with one prefix per text if prefixes are given.

    Before a read that would block according to `input_ready`, None is yielded, at most once per window, so that the
    caller can output what is finished.
    """
    lines, prefix_lines = iter(texts), None if prefixes is None else iter(prefixes)
    first, announced = 0, False
    window: list[str] = []
    while True:
        if input_ready is not None and not announced and not input_ready():
            announced = True
            yield None
        count = len(window)
        window.extend(islice(lines, 1))
        at_end = len(window) == count
        if window and (at_end or len(window) == size):
            yield Window(first, window, next_prefixes(prefix_lines, first, len(window)))
            first, window, announced = first + len(window), [], False
        if at_end:
            return


def next_prefixes(prefix_lines: Iterator[str] | None, first: int, count: int) -> list[str] | None:
    """Return the next `count` prefixes; raise an error if there are fewer."""
    if prefix_lines is None:
        return None
    prefixes = [prefix for _, prefix in zip(range(count), prefix_lines, strict=False)]
    if len(prefixes) < count:
        raise SaccadeError(
            f"{first + len(prefixes)} prefixes for more sources", hint="give one prefix per source; it may be empty"
        )
    return prefixes
