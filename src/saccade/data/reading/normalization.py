"""Text normalization, identical in training, translation and evaluation."""

from __future__ import annotations

import re
import unicodedata

from saccade.data.config import Normalization

# Control characters that are whitespace (tab, line feed …) are not in this list. A byte order mark inside a text comes
# from concatenated files. Noncharacters (U+FDD0 …) are reserved for internal use; the tokenizer uses two of them.
REMOVED = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def normalize(text: str, form: Normalization) -> str:
    """Normalize Unicode, remove control characters, collapse whitespace to single spaces, and strip the ends.

    No-break and other Unicode spaces count as whitespace: they look alike and are not typed reliably.
    """
    if not text.isprintable():  # most texts are printable: skip the regex
        text = REMOVED.sub("", text)
    if form == "nfc":
        text = unicodedata.normalize("NFC", text)
    elif form == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.split())
