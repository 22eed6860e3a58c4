"""Text in terminal cells: visible characters, widths, truncation and padding."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len

JOINERS = "\u200c\u200d"
ELLIPSIS = "…"


def visible(text: str) -> str:
    """The text with visible replacements for whitespace and control characters, which the terminal would interpret."""
    if not text:
        return "∅"
    return "".join("␣" if character.isspace() else visible_character(character) for character in text)


def visible_character(character: str) -> str:
    """The character if it is printable or a joiner, else a replacement character."""
    return character if character.isprintable() or character in JOINERS else "\ufffd"


def clusters(text: str) -> list[str]:
    """Split a text into base characters with their combining marks."""
    units: list[str] = []
    for character in text:
        joined = bool(units) and units[-1].endswith("\u200d")
        if units and (joined or character in JOINERS or unicodedata.category(character) in ("Mn", "Me", "Mc")):
            units[-1] += character
        else:
            units.append(character)
    return units


def cells(text: str) -> int:
    """The width of a text in terminal cells: two for a wide character, none for a combining mark."""
    return cell_len(text)


def clip(text: str, width: int) -> str:
    """Truncate a text to `width` cells, with an ellipsis."""
    if cells(text) <= width:
        return text
    kept = ""
    for cluster in clusters(text):
        if cells(kept + cluster + ELLIPSIS) > width:
            break
        kept += cluster
    return (kept + ELLIPSIS) if width > 0 else ""


def pad_left(text: str, width: int) -> str:
    """Right-align a text in `width` cells."""
    return " " * (width - cells(text)) + text


def pad_right(text: str, width: int) -> str:
    """Left-align a text in `width` cells."""
    return text + " " * (width - cells(text))
