"""What the rows of one table have in common, and whether an output folder is of the same comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saccade.config import merge, underscored
from saccade.data.reading.input_files import InputFile, InputFiles
from saccade.errors import SaccadeError
from saccade.folder import read_json
from saccade.studies.comparison.request import PATHS, Request
from saccade.untrusted_files import shown

STATE = "compare.json"
GROUPS = ("model", "data", "training", "decoding")
PLACES = (*PATHS, "cache", "workers")
"""Settings of the data that say where it lies and how fast it is prepared."""


def identity_of(request: Request) -> dict[str, Any]:
    """All that a row of the table depends on but its model; files count by their content, wherever they lie."""
    files = InputFiles(request.config(request.entries[0]).data).digests()
    files["test_source"] = [InputFile(str(request.test_source)).digest]
    files["test_reference"] = [InputFile(str(path)).digest for path in request.test_references]
    budget = {"minutes": request.budget.minutes, "tokens": request.budget.tokens}
    return {"budget": budget, **named_settings(request, request.settings), "files": files}


def named_settings(request: Request, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings that somebody named, as the config understands them: 8000 and '8000' are the same.

    Those of another time that this request cannot have are left as they are.
    """
    given = {group: underscored(settings.get(group) or {}) for group in GROUPS}
    given["data"] = {name: value for name, value in given["data"].items() if name not in PLACES}
    present = underscored(request.settings.get("data", {}))
    places = {"data": {name: value for name, value in present.items() if name in PLACES}}
    try:
        resolved = request.config(request.entries[0], settings=merge(given, places)).model_dump(mode="json")
    except SaccadeError:
        return given
    return {
        group: {name: resolved[group].get(name, value) for name, value in values.items()}
        for group, values in given.items()
    }


def check_same(request: Request, identity: Mapping[str, Any]) -> None:
    """Refuse an output folder that holds another comparison; other models may join.

    As long as no model has come to anything, the settings are free.
    """
    output, path = request.output, request.output / STATE
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(one.name != ".lock" for one in output.iterdir())):
            raise SaccadeError(
                "already exists and holds no comparison", where=str(output), do="choose another --output"
            )
        return
    if not any((output / "results").glob("*.json")):
        return
    stored = read_json(path).get("settings")
    before = stored if isinstance(stored, dict) else {}
    groups = {group: before[group] for group in GROUPS if isinstance(before.get(group), dict)}
    before = {"budget": before.get("budget"), **named_settings(request, groups), "files": before.get("files")}
    changed = differences(before, identity)
    if changed:
        raise SaccadeError(
            f"holds a comparison with other settings: {'; '.join(changed[:5])}",
            where=str(output),
            do="leave the settings as they were (only --models and --sentence may change), or choose another --output",
        )


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted settings in which two comparisons differ, in words."""
    words: list[str] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        dotted = f"{prefix}{name}".replace("_", "-")
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            words += differences(old, new, f"{dotted}.")
        elif old != new and dotted.startswith("files."):
            words.append(f"the files of --{dotted.removeprefix('files.')} are not the same")
        elif old != new:
            words.append(f"{dotted} {shown(old)} -> {shown(new)}")
    return words
