"""Lines from the standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from saccade.errors import SaccadeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_standard_input() -> Iterator[str]:
    """The lines of the standard input, which must be UTF-8 whatever the locale; no lines at all are no fault."""
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        try:
            yield raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise SaccadeError(
                f"byte {error.start + 1} of the line is not UTF-8 (0x{error.object[error.start]:02x})",
                where=f"standard input, line {number}",
                do="convert the text first, for example: iconv -f latin1 -t utf-8",
            ) from None
