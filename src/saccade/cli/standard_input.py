"""Lines from the standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from saccade.data.reading.text_lines import Lines


def read_standard_input() -> Iterator[str]:
    """The lines of the standard input, which must be UTF-8 whatever the locale; no lines at all are no fault."""
    return (line for line in Lines(sys.stdin.buffer.readline, "standard input") if line is not None)
