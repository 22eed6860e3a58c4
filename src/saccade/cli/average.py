"""`saccade average`: average the weights of models or checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from saccade import messages
from saccade.cli.output.output_paths import check_not_part_of_model
from saccade.cli.output.task import Task, task
from saccade.errors import SaccadeError, UsageError


def average(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Model folders, runs or checkpoints; with --last, one run."),
    ],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="A new model folder.")],
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Average the newest N checkpoints of the run.")
    ] = None,
) -> None:
    """Average the weights of models or checkpoints.

    The result is a complete model folder.

    \b
    saccade average runs/x --last 5 --output runs/x/model-average
    saccade average runs/a runs/b --output averaged
    """
    check_not_part_of_model("--output", output)
    if last is not None:
        if len(folders) != 1:
            raise UsageError("--last averages the checkpoints of one run", hint="name one run, or leave --last out")
        paths, model = last_checkpoints(folders[0], last), find_model(folders[0])
    else:
        if len(folders) < 2:
            raise UsageError(
                "averaging needs at least two folders",
                hint="name several folders, or one run and --last 5 to average its checkpoints",
            )
        paths, model = [find_weights(folder) for folder in folders], find_model(folders[0])
        for folder in folders[1:]:
            check_same_model(model, find_model(folder))
    for path in paths:
        messages.detail(f"weights: {path}")
    if output.exists():
        raise SaccadeError("already exists", where=str(output), hint="choose another --output; nothing is overwritten")
    with task("averaging", len(paths), "weights") as work:
        write_average(paths, model, output, work)
    print(f"average of {len(paths)}: {output}")
    work.finish(f"averaged {len(paths)}", output)


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the newest checkpoints of a run."""
    from saccade.training.checkpoints.checkpoint import list_checkpoints
    from saccade.training.runs.directory import RunDirectory

    kept = list_checkpoints(RunDirectory(run).checkpoints)
    if len(kept) < count:
        raise SaccadeError(
            f"holds {len(kept)} checkpoints, not {count}",
            where=str(run),
            hint="lower --last, or train with a larger --training.keep-checkpoints",
        )
    return kept[-count:]


def find_weights(folder: Path) -> Path:
    """Return the folder that holds the weights: the checkpoint itself, or the model folder of a run."""
    return folder if is_checkpoint(folder) else find_model(folder)


def find_model(folder: Path) -> Path:
    """Return the model folder with the config and tokenizers for these weights; a checkpoint uses that of its run."""
    from saccade.model_folder import find_model_folder

    return find_model_folder(folder.resolve().parent.parent if is_checkpoint(folder) else folder)


def is_checkpoint(folder: Path) -> bool:
    """Return whether this is a training checkpoint rather than a model folder."""
    from saccade.training.checkpoints.checkpoint import STATE

    return (folder / STATE).is_file()


def check_same_model(first: Path, other: Path) -> None:
    """Raise an error if settings or vocabularies differ: the shapes may match, but the average is meaningless."""
    from saccade.folder import describe_file, read_json

    if read_json(first / "config.json").get("model") != read_json(other / "config.json").get("model"):
        raise SaccadeError(
            f"has different model settings than {first}",
            where=str(other),
            hint="average models of one run, or of one recipe",
        )
    vocabularies = [
        {file.name: describe_file(file) for file in folder.glob("tokenizer*.json")} for folder in (first, other)
    ]
    if vocabularies[0] != vocabularies[1]:
        raise SaccadeError(
            f"has a different vocabulary than {first}",
            where=str(other),
            hint="average models of one run, or with one tokenizer",
        )


def write_average(paths: list[Path], model: Path, output: Path, work: Task) -> None:
    """Write a copy of a model folder with averaged weights."""
    from saccade.inference.loading import translator_from
    from saccade.model_folder import copy_weights, load_model_folder, save_model_folder
    from saccade.training.checkpoints.averaging import average_weights

    folder = load_model_folder(model)
    translator_from(folder, where=str(model))  # checks the decoding defaults, which are copied
    copy_weights(folder.model, average_weights(paths, work.advance), paths[0])
    note = f"\nThe weights are the average of {len(paths)}: {', '.join(str(path) for path in paths)}.\n"
    save_model_folder(output, replace(folder, card=folder.card + note))
