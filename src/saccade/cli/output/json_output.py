"""The `--json` option: results as JSON on standard output or in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from saccade.cli.output.atomic_file import write_text_atomically
from saccade.cli.output.output_paths import STANDARD_STREAM, check_outputs

STANDARD_OUTPUT = STANDARD_STREAM

JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="[FILE]", help="Write the result as JSON to FILE, which must end in .json, or to stdout."
    ),
]


def write_json_output(path: str, values: Any) -> None:
    """Write plain data to a file, or to standard output for `-`."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    if path == STANDARD_OUTPUT:
        print(text)
    else:
        check_outputs({"--json": path})
        write_text_atomically(Path(path), text + "\n")
