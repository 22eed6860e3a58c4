"""The result of `saccade evaluate` as JSON, and its copy in the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade import messages
from saccade.cli.options.model import ModelOrEnsemble
from saccade.cli.output.atomic_file import write_text_atomically
from saccade.file_names import is_file_name
from saccade.folder import json_text

if TYPE_CHECKING:
    from saccade.decoding.config import DecodingConfig
    from saccade.evaluation.bootstrap import Comparison
    from saccade.evaluation.report import Report


def to_json(
    report: Report,
    comparisons: Sequence[Comparison],
    files: dict[str, Any],
    system: ModelOrEnsemble | None,
    settings: DecodingConfig | None,
) -> dict[str, Any]:
    """Return the report with the files and settings that it depends on."""
    values = report.to_json()
    if system is not None:
        values |= system.to_json()
    for name, value in files.items():
        if value:
            values[name] = [str(path) for path in value] if isinstance(value, list) else str(value)
    if settings is not None:
        values["decoding"] = settings.model_dump(mode="json")
    if comparisons:
        values["comparisons"] = [asdict(comparison) for comparison in comparisons]
    return values


def test_set_name(source: Path) -> str:
    """Return the name of a test set: its file name without the language suffix and .gz."""
    name = Path(source.name.removesuffix(".gz")).stem
    return name if is_file_name(name) and not name.startswith(".") else "test"


def save_in_run(run: Path, name: str, values: dict[str, Any]) -> str | None:
    """Write eval/NAME.json if this is a run directory that can be written; return what was done."""
    from saccade.training.runs.directory import RunDirectory

    if not RunDirectory(run).config.is_file():
        return None
    folder = run / "eval"
    if not os.access(folder if folder.exists() else run, os.W_OK):
        messages.note(f"{run} is read-only: the result is not saved in it")
        return None
    path = folder / f"{name}.json"
    action = "replaced" if path.exists() else "saved as"
    folder.mkdir(exist_ok=True)
    write_text_atomically(path, json_text(values))
    return f"{action} {path}"
