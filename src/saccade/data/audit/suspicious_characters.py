"""Characters that do not belong into a text, and text that was read in the wrong encoding."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# What each code point is: the number of its kind in the low bits, and whether it can be a byte of misread UTF-8.
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
# Windows reads the bytes 0x80 to 0x9f as these; five of them it does not know.
WINDOWS = {
    ord(bytes([byte]).decode("cp1252")): byte
    for byte in range(0x80, 0xA0)
    if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


def character_table() -> NDArray[np.uint8]:
    """The bits of every code point."""
    ranges = {
        "control": [(0x00, 0x08), (0x0E, 0x1B), (0x7F, 0x84), (0x86, 0x9F)],
        "replacement": [(0xFFFD, 0xFFFD)],
        "direction": [(0x061C, 0x061C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)],
        # The zero-width joiner and non-joiner are letters' business in Persian, in Indian scripts and in emoji.
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
    table[list(WINDOWS)] |= CONTINUATION
    return table


TABLE = character_table()


def remarkable_characters(texts: Sequence[str]) -> dict[str, list[int]]:
    """The places of the texts that hold characters of each remarkable kind, in order."""
    joined = "\n".join(texts)  # a line feed is ordinary, and parts a lead from a continuation in the next text
    bits = TABLE[np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")]
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) + 1)
    places: dict[str, list[int]] = {}
    (remarkable,) = np.nonzero(bits & KIND_BITS)
    if len(remarkable):
        kinds, texts_of = bits[remarkable] & KIND_BITS, np.searchsorted(ends, remarkable, side="right")
        for number in np.unique(kinds).tolist():
            places[CHARACTER_KINDS[number]] = np.unique(texts_of[kinds == number]).tolist()
    (suspicious,) = np.nonzero((bits[:-1] & LEAD).astype(bool) & (bits[1:] & CONTINUATION).astype(bool))
    if len(suspicious):
        candidates = np.unique(np.searchsorted(ends, suspicious, side="right")).tolist()
        if found := [place for place in candidates if misread(texts[place])]:
            places["misread"] = found
    return places


MISREAD = re.compile("Ã[\x80-\xbf" + "".join(map(chr, WINDOWS)) + "]|Â[\xa0-\xbf]|â(?:€|\x80)")


def misread(text: str) -> bool:
    """Whether a text looks like UTF-8 that was read as Latin-1 or as Windows does."""
    if MISREAD.search(text):
        return True
    try:  # other scripts have other leads, but all of such a text is UTF-8 if it is written as the bytes it was
        read = text.translate(WINDOWS).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return False
    return sum(not character.isascii() for character in read) > 1  # one alone may be chance: CAFÉ»


def place_of(kind: str, text: str) -> int:
    """Where in a text the first character of this kind stands, if it is a kind of characters; else 0."""
    if kind == "misread":
        match = MISREAD.search(text)
        return match.start() if match else 0
    if kind not in CHARACTER_KINDS:
        return 0
    number = CHARACTER_KINDS.index(kind)
    return next(place for place, character in enumerate(text) if TABLE[ord(character)] & KIND_BITS == number)
