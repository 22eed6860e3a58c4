"""The ids that mean something to every part: tokenizers write them, models and searches read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbols:
    """The ids that a search must know."""

    pad: int = 0
    begin: int = 1
    end: int = 2
    unknown: int = 3
