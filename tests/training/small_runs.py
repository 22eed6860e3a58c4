"""Data and a model for whole runs of a few seconds: words that come out spelt backwards."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = ["ab", "ba", "cad", "dac", "ee", "fg"]
MODEL = {
    "preset": "transformer-tiny",
    "encoder_layers": 1,
    "decoder_layers": 1,
    "width": 16,
    "feed_forward": 16,
    "heads": 2,
}


def write_pairs(folder: Path, count: int, longest: int) -> None:
    """`count` lines of up to `longest` words, and the same reversed."""
    chooser = random.Random(0)
    lines = [" ".join(chooser.choices(WORDS, k=chooser.randint(1, longest))) for _ in range(count)]
    (folder / "train.src").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "train.tgt").write_text("\n".join(line[::-1] for line in lines) + "\n", encoding="utf-8")
