"""Checks that a run directory has everything a resumed run needs; a resumed run never replaces finished work."""

from __future__ import annotations

from pathlib import Path

from saccade.errors import SaccadeError
from saccade.training.checkpoints.checkpoint import DAMAGED_PREFIX, list_checkpoints
from saccade.training.runs.csv_log import read_rows
from saccade.training.runs.directory import RunDirectory


def check_run_directory(directory: RunDirectory) -> None:
    """Raise an error for a path that is not a run directory, or that has lost its config."""
    path = directory.path
    if directory.config.is_file():
        return
    if not path.exists():
        raise SaccadeError("no such run directory", where=str(path), hint="name the --output of an earlier run")
    if RunDirectory(path.absolute().parent).config.is_file():
        raise SaccadeError(
            "is a part of a run, not a run directory",
            where=str(path),
            hint=f"name the run directory: --resume {path.absolute().parent}",
        )
    left = existing_results(directory)
    if left:
        raise SaccadeError(
            f"{directory.config.name} is missing, so the run cannot be resumed; left: {', '.join(left)}",
            where=str(path),
            hint=f"restore {directory.config.name} from a backup, or {new_start(directory)}",
        )
    empty = path.is_dir() and not any(path.iterdir())
    raise SaccadeError(
        "not a run directory" + (": it is empty" if empty else ""),
        where=str(path),
        hint=f"start a run in it: saccade train --output {path}" if empty else "name the --output of an earlier run",
    )


def check_checkpoints_exist(directory: RunDirectory, checkpoint_every: int) -> None:
    """Raise an error if the run had a checkpoint and has none: without one it would begin again, over its results.

    A run that was killed before its first checkpoint passes.
    """
    if has_checkpoint(directory.checkpoints) or not had_checkpoint(directory, checkpoint_every):
        return
    left = existing_results(directory)
    raise SaccadeError(
        "contains no checkpoint, but the run had one" + (f"; left: {', '.join(left)}" if left else ""),
        where=str(directory.checkpoints),
        hint=f"restore the checkpoints from a backup, or {new_start(directory)}",
    )


def check_data_record(directory: RunDirectory) -> None:
    """Raise an error if the tokenizers or the data digest of a run with checkpoints are missing."""
    if not has_checkpoint(directory.checkpoints):
        return
    for path in (directory.tokenizers, directory.data):
        if not path.exists():
            raise SaccadeError(
                "is missing, so the run cannot be resumed",
                where=str(path),
                hint=f"restore it from a backup, or {new_start(directory)}",
            )


def has_checkpoint(folder: Path) -> bool:
    """Return whether there is a checkpoint, intact or not, including one that a killed writer was replacing."""
    return bool(list_checkpoints(folder)) or any(folder.glob(".step-*.previous"))


def had_checkpoint(directory: RunDirectory, checkpoint_every: int) -> bool:
    """Return whether a run without checkpoints must have saved one."""
    if not directory.checkpoints.is_dir() or any(directory.checkpoints.glob(f"{DAMAGED_PREFIX}*")):
        return True  # every run creates the folder at its start
    # model-last is written after a checkpoint. Saving one checkpoint waits for the previous one.
    return directory.last.exists() or last_logged_step(directory) > 2 * checkpoint_every


def last_logged_step(directory: RunDirectory) -> int:
    """Return the last step in metrics.csv, 0 without one."""
    rows = read_rows(directory.metrics) if directory.metrics.is_file() else []
    steps = [int(row["step"]) for row in rows if row.get("step", "").isdecimal()]
    return max(steps, default=0)


def existing_results(directory: RunDirectory) -> list[str]:
    """Return the names of the results that a run directory still has."""
    results = (directory.last, directory.best, directory.metrics)
    found = [path.name for path in results if path.exists()]
    return found + [path.name for path in list_checkpoints(directory.checkpoints)]


def new_start(directory: RunDirectory) -> str:
    """Advise how to train again without this run: from its model if there is one, and in another directory."""
    models = [path for path in (directory.last, directory.best) if path.exists()]
    if models:
        return f"start a new run from its model: saccade train --from {models[0]} --output NEW, with the data files"
    return "start a new run with another --output"
