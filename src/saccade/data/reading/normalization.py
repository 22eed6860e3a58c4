"""Normalising text, the same way before training, translation and evaluation."""

from __future__ import annotations

import re
import unicodedata

from saccade.data.config import Normalization

# Tab, line feed and their kin are whitespace, so they are not in this list. A byte order mark inside a text is left
# over from joined files. Noncharacters (U+FDD0 …) are reserved for a program's own use; the tokenizer makes use of two.
REMOVED = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def normalize(text: str, form: Normalization) -> str:
    """Normalise Unicode, remove control characters, make every run of whitespace one space, and strip the ends.

    No-break and other Unicode spaces are whitespace too: nobody can see the difference, or types it reliably.
    """
    if not text.isprintable():  # most texts are, and skip the search
        text = REMOVED.sub("", text)
    if form == "nfc":
        text = unicodedata.normalize("NFC", text)
    elif form == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.split())
