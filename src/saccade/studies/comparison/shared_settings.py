"""Settings that all rows of a comparison share; continuing a comparison with other settings is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saccade.config import merge, underscored
from saccade.data.reading.input_files import InputFile, InputFiles
from saccade.errors import SaccadeError
from saccade.folder import read_json
from saccade.studies.comparison.request import Request
from saccade.untrusted_files import shown

STATE = "compare.json"
GROUPS = ("model", "data", "training", "decoding")
FREE_DATA_SETTINGS = ("source", "target", "valid_source", "valid_target", "cache", "workers")
"""Data settings that may change: paths of files, whose content is compared, and the number of processes."""


def shared_settings(request: Request) -> dict[str, Any]:
    """Return the settings that a row depends on, except its model; files are compared by content."""
    files = InputFiles(request.config(request.entries[0]).data).digests()
    files["test_source"] = [InputFile(str(request.test_source)).digest]
    files["test_reference"] = [InputFile(str(path)).digest for path in request.test_references]
    budget = {"minutes": request.budget.minutes, "tokens": request.budget.tokens}
    return {"budget": budget, **resolved_settings(request, request.settings), "files": files}


def resolved_settings(request: Request, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the named settings with their parsed values, so that 8000 and '8000' are equal.

    Stored settings that are invalid for this request are returned unchanged.
    """
    given = {group: underscored(settings.get(group) or {}) for group in GROUPS}
    given["data"] = {name: value for name, value in given["data"].items() if name not in FREE_DATA_SETTINGS}
    current = underscored(request.settings.get("data", {}))
    free = {"data": {name: value for name, value in current.items() if name in FREE_DATA_SETTINGS}}
    try:
        resolved = request.config(request.entries[0], settings=merge(given, free)).model_dump(mode="json")
    except SaccadeError:
        return given
    return {
        group: {name: resolved[group].get(name, value) for name, value in values.items()}
        for group, values in given.items()
    }


def check_same_settings(request: Request, settings: Mapping[str, Any]) -> None:
    """Raise an error if the output folder has a comparison with other settings, or something else.

    Models may be added. Settings may change until the first model has a plan.
    """
    output, path = request.output, request.output / STATE
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(file.name != ".lock" for file in output.iterdir())):
            raise SaccadeError(
                "already exists and contains no comparison", where=str(output), hint="choose another --output"
            )
        return
    if not any((output / "results").glob("*.json")):
        return
    stored = read_json(path).get("settings")
    before = stored if isinstance(stored, dict) else {}
    groups = {group: before[group] for group in GROUPS if isinstance(before.get(group), dict)}
    before = {"budget": before.get("budget"), **resolved_settings(request, groups), "files": before.get("files")}
    changed = changed_settings(before, settings)
    if changed:
        raise SaccadeError(
            f"contains a comparison with other settings: {'; '.join(changed[:5])}",
            where=str(output),
            hint="keep the settings (only --models and --sentence may change), or choose another --output",
        )


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Describe the dotted settings that differ."""
    changes: list[str] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        dotted = f"{prefix}{name}".replace("_", "-")
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += changed_settings(old, new, f"{dotted}.")
        elif old != new and dotted.startswith("files."):
            changes.append(f"the files of --{dotted.removeprefix('files.')} are not the same")
        elif old != new:
            changes.append(f"{dotted} {shown(old)} -> {shown(new)}")
    return changes
