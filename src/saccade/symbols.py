"""Ids of the special tokens, shared by tokenizers, models and search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbols:
    """Ids of padding, begin-of-sequence, end-of-sequence and unknown tokens."""

    pad: int = 0
    begin: int = 1
    end: int = 2
    unknown: int = 3
