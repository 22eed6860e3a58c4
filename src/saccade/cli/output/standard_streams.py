"""Standard streams whose descriptors the caller has closed, as in `saccade translate RUN <&- >&-`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def open_closed_streams() -> None:
    """Give closed standard descriptors a file, so that no other file gets their number.

    Standard input and output become files that raise an error when they are read or written; stderr is discarded.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        opened = os.open(os.devnull, mode)  # the lowest free number: this one
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
