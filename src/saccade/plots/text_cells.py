"""Text on a terminal: what one position shows, how many cells it takes, and how to cut or pad to a width."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len

JOINERS = "\u200c\u200d"
ELLIPSIS = "…"


def visible(text: str) -> str:
    """The text with a visible sign for everything that is not: control characters would steer the terminal."""
    if not text:
        return "∅"
    return "".join("␣" if character.isspace() else visible_character(character) for character in text)


def visible_character(character: str) -> str:
    """The character itself if it prints or joins, else a replacement sign."""
    return character if character.isprintable() or character in JOINERS else "\ufffd"


def clusters(text: str) -> list[str]:
    """The text in units of one base character with its combining marks."""
    units: list[str] = []
    for character in text:
        joined = bool(units) and units[-1].endswith("\u200d")
        if units and (joined or character in JOINERS or unicodedata.category(character) in ("Mn", "Me", "Mc")):
            units[-1] += character
        else:
            units.append(character)
    return units


def cells(text: str) -> int:
    """How many terminal cells the text takes: two for a wide character, none for a combining mark."""
    return cell_len(text)


def clip(text: str, width: int) -> str:
    """The text in at most `width` cells, with an ellipsis where something was left out."""
    if cells(text) <= width:
        return text
    kept = ""
    for cluster in clusters(text):
        if cells(kept + cluster + ELLIPSIS) > width:
            break
        kept += cluster
    return (kept + ELLIPSIS) if width > 0 else ""


def pad_left(text: str, width: int) -> str:
    """The text at the right end of `width` cells."""
    return " " * (width - cells(text)) + text


def pad_right(text: str, width: int) -> str:
    """The text at the left end of `width` cells."""
    return text + " " * (width - cells(text))
