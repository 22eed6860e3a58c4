"""Where the benchmarks keep what they make."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"  # environments, data, models, logs: may be deleted at any time
RESULTS = ROOT / "bench" / "results"


def data_folder() -> Path:
    """$SACCADE_DATA, by default ./data of the checkout."""
    return Path(os.environ.get("SACCADE_DATA", ROOT / "data")).absolute()


def multi30k() -> Path | None:
    """The folder of Multi30k, if it is there."""
    folder = data_folder() / "multi30k"
    return folder if (folder / "train.en").is_file() else None
