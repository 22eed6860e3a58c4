"""Font families for a text: DejaVu Sans, then installed fonts that have the characters it lacks.

DejaVu Sans comes with matplotlib and covers Latin, Greek, Cyrillic, Hebrew, Arabic and many symbols.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry

BASE_FONT = "DejaVu Sans"
LAST_RESORT = "Last Resort"  # a font of matplotlib whose glyphs are boxes
REGULAR_WEIGHT = 400

PREFERRED_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei"),
    *("Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    *("Noto Emoji", "Symbola", "Segoe UI Emoji", "Segoe UI Symbol", "Apple Symbols", "Arial Unicode MS"),
)
"""Tried first for a missing character, then all other installed fonts."""

CJK_NAMES = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")


class FontChoice(NamedTuple):
    """Font families for a text, and the characters that none of them has."""

    families: list[str]
    missing: list[str]


def choose_fonts(texts: Iterable[str]) -> FontChoice:
    """Choose the base font and as few installed fonts as needed for all visible characters of the texts."""
    wanted = {character for text in texts for character in text if is_visible(character)}
    missing = wanted - characters_of(base_font_path())
    families = [BASE_FONT]
    if missing:
        cover(missing, families, installed_fonts())
    if missing and add_new_fonts():
        cover(missing, families, installed_fonts())
    return FontChoice(families, sorted(missing))


def is_visible(character: str) -> bool:
    """Whether a character needs a glyph: it is neither whitespace, a control or format character, nor a selector."""
    return not (
        character.isspace()
        or unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs")
        or "VARIATION SELECTOR" in unicodedata.name(character, "")
    )


def cover(missing: set[str], families: list[str], fonts: Iterable[FontEntry]) -> None:
    """Append the families of fonts that have missing characters, and remove these characters."""
    for font in fonts:
        if not missing:
            return
        found = missing & characters_of(font.fname)
        if found:
            families.append(font.name)
            missing -= found


def installed_fonts() -> list[FontEntry]:
    """One upright font per family, the preferred families first, with the weight nearest to regular."""
    from matplotlib.font_manager import fontManager

    families: dict[str, FontEntry] = {}
    for font in fontManager.ttflist:
        if font.style != "normal" or font.name == BASE_FONT or font.name.startswith(LAST_RESORT):
            continue
        known = families.get(font.name)
        if known is None or distance_from_regular(font) < distance_from_regular(known):
            families[font.name] = font
    preferred = {name: rank for rank, name in enumerate(PREFERRED_FONTS)}
    return sorted(families.values(), key=lambda font: (preferred.get(font.name, len(preferred)), font.name))


def distance_from_regular(font: FontEntry) -> int:
    """The distance of a font's weight from the regular one; a weight may be a name such as "bold"."""
    from matplotlib.font_manager import weight_dict

    weight = weight_dict.get(font.weight, REGULAR_WEIGHT) if isinstance(font.weight, str) else font.weight
    return abs(int(weight) - REGULAR_WEIGHT)


@cache
def add_new_fonts() -> bool:
    """Register fonts that were installed after matplotlib listed the fonts; return whether there are any."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {font.fname for font in fontManager.ttflist}
    before = len(known)
    for path in findSystemFonts():
        if path not in known:
            with suppress(Exception):  # bitmap fonts and damaged files; FreeType raises no narrower class
                fontManager.addfont(path)
    return len(fontManager.ttflist) > before


def base_font_path() -> str:
    """The file of the base font."""
    from matplotlib.font_manager import findfont

    return str(findfont(BASE_FONT))


@cache
def characters_of(path: str) -> frozenset[str]:
    """The characters that a font file has."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # the file was removed or is damaged
        return frozenset()


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Suppress the warnings of matplotlib about missing glyphs, one for each character; ours names the package."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def missing_fonts_message(missing: Iterable[str]) -> str:
    """The warning about characters without a font; it names the packages of Debian and Ubuntu."""
    characters = list(missing)
    shown = "".join(characters[:10]) + ("…" if len(characters) > 10 else "")
    packages = " ".join(dict.fromkeys(map(package_of, characters)))
    return (
        f"no installed font has {shown}, so boxes are drawn instead\n"
        f"  install a font (on Debian and Ubuntu: apt install {packages}), or write an .svg file"
    )


def package_of(character: str) -> str:
    """The Debian package of a font that has this character."""
    if unicodedata.name(character, "").startswith(CJK_NAMES):
        return "fonts-noto-cjk"
    # Emoji that are newer than the Unicode of this Python have the category "Cn".
    symbol = unicodedata.category(character) in ("So", "Sk", "Sm") or "\U0001f000" <= character <= "\U0001faff"
    return "fonts-symbola" if symbol else "fonts-noto-core"
