"""A flag that ends a running search from another thread, for example after Ctrl-C."""

from __future__ import annotations

import ctypes


class SearchStoppedError(Exception):
    """The search was ended by its stop flag, so there are no hypotheses."""


class StopFlag:
    """A flag that every step of a search reads; a C search reads it through a pointer to `value`."""

    def __init__(self) -> None:
        self.value = ctypes.c_int(0)

    def set(self) -> None:
        """End the searches that have this flag."""
        self.value.value = 1

    @property
    def is_set(self) -> bool:
        """Whether the searches must end."""
        return self.value.value != 0

    def check(self) -> None:
        """Raise SearchStoppedError if the flag is set."""
        if self.is_set:
            raise SearchStoppedError


def check_stop(stop: StopFlag | None) -> None:
    """Raise SearchStoppedError if there is a flag and it is set."""
    if stop is not None:
        stop.check()
