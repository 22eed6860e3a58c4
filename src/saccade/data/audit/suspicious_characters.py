"""Detection of suspicious characters and of mojibake (UTF-8 decoded as Latin-1 or Windows-1252)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# The table has one byte per code point: the index of its kind in the low bits, and flags for bytes of misread UTF-8.
CHARACTER_KINDS = (
    "",
    "control",
    "replacement",
    "direction",
    "zero-width",
    "byte-order-mark",
    "surrogate",
    "noncharacter",
)
KIND_BITS, LEAD, CONTINUATION = 0x0F, 0x10, 0x20
# The characters of bytes 0x80 to 0x9f in Windows-1252; five of these bytes are undefined.
WINDOWS_1252 = {
    ord(bytes([byte]).decode("cp1252")): byte
    for byte in range(0x80, 0xA0)
    if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


def character_table() -> NDArray[np.uint8]:
    """The kind and flags of every code point."""
    ranges = {
        "control": [(0x00, 0x08), (0x0E, 0x1B), (0x7F, 0x84), (0x86, 0x9F)],
        "replacement": [(0xFFFD, 0xFFFD)],
        "direction": [(0x061C, 0x061C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)],
        # The zero-width joiner and non-joiner are not listed: Persian, Indic scripts and emoji need them.
        "zero-width": [(0x00AD, 0x00AD), (0x200B, 0x200B), (0x2060, 0x2064)],
        "byte-order-mark": [(0xFEFF, 0xFEFF)],
        "surrogate": [(0xD800, 0xDFFF)],
        "noncharacter": [(0xFDD0, 0xFDEF), *((plane << 16 | 0xFFFE, plane << 16 | 0xFFFF) for plane in range(17))],
    }
    table = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    for kind, parts in ranges.items():
        for start, end in parts:
            table[start : end + 1] = CHARACTER_KINDS.index(kind)
    table[0xC2 : 0xF4 + 1] |= LEAD
    table[0x80 : 0xBF + 1] |= CONTINUATION
    table[list(WINDOWS_1252)] |= CONTINUATION
    return table


TABLE = character_table()


def find_suspicious_characters(texts: Sequence[str]) -> dict[str, list[int]]:
    """Return, for each kind, the ascending indices of the texts that contain such characters."""
    joined = "\n".join(texts)  # the line feed separates a lead byte from a continuation byte in the next text
    bits = TABLE[np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")]
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) + 1)
    found: dict[str, list[int]] = {}
    (suspicious,) = np.nonzero(bits & KIND_BITS)
    if len(suspicious):
        kinds, texts_of = bits[suspicious] & KIND_BITS, np.searchsorted(ends, suspicious, side="right")
        for number in np.unique(kinds).tolist():
            found[CHARACTER_KINDS[number]] = np.unique(texts_of[kinds == number]).tolist()
    (sequences,) = np.nonzero((bits[:-1] & LEAD).astype(bool) & (bits[1:] & CONTINUATION).astype(bool))
    if len(sequences):
        candidates = np.unique(np.searchsorted(ends, sequences, side="right")).tolist()
        if misread := [index for index in candidates if is_mojibake(texts[index])]:
            found["misread"] = misread
    return found


MOJIBAKE = re.compile("Ã[\x80-\xbf" + "".join(map(chr, WINDOWS_1252)) + "]|Â[\xa0-\xbf]|â(?:€|\x80)")


def is_mojibake(text: str) -> bool:
    """Return whether a text looks like UTF-8 that was decoded as Latin-1 or Windows-1252."""
    if MOJIBAKE.search(text):
        return True
    try:  # in other scripts: encode the text back to bytes and test whether they are UTF-8
        read = text.translate(WINDOWS_1252).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return False
    return sum(not character.isascii() for character in read) > 1  # one non-ASCII character may be a coincidence: CAFÉ»


def first_position(kind: str, text: str) -> int:
    """The position of the first character of a kind in a text; 0 if it is not a kind of characters."""
    if kind == "misread":
        match = MOJIBAKE.search(text)
        return match.start() if match else 0
    if kind not in CHARACTER_KINDS:
        return 0
    number = CHARACTER_KINDS.index(kind)
    return next(position for position, character in enumerate(text) if TABLE[ord(character)] & KIND_BITS == number)
