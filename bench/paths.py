"""Paths of benchmark data, caches and results."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"  # environments, data, models and logs; safe to delete
RESULTS = ROOT / "bench" / "results"


def data_folder() -> Path:
    """$SACCADE_DATA, by default data/ of the repository."""
    return Path(os.environ.get("SACCADE_DATA", ROOT / "data")).absolute()


def multi30k() -> Path | None:
    """The folder of Multi30k, or None."""
    folder = data_folder() / "multi30k"
    return folder if (folder / "train.en").is_file() else None
