"""Results as JSON: to the standard output for pipes, or into a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STANDARD_OUTPUT = "-"


def write_json_output(place: str, values: Any) -> None:
    """Write plain data to a file, or to the standard output for `-`."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    if place == STANDARD_OUTPUT:
        print(text)
    else:
        Path(place).write_text(text + "\n", encoding="utf-8")
