"""`saccade check`: what would stop a training or spoil it, before it starts."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.json_output import write_json_output
from saccade.cli.settings import apply_settings, run_settings
from saccade.cli.train import RUNS, config_without_recipe, free_directory, model_name
from saccade.errors import UsageError, printable

if TYPE_CHECKING:
    from saccade.training.config import RunConfig


def check(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="RECIPE", help="A YAML file; its data is relative to $SACCADE_DATA (./data)."),
    ] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="As in `saccade train`, like all that is not explained here."),
    ] = None,
    target: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    valid_source: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    valid_target: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    test_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Test data: is any of it in the training data?")
    ] = None,
    test_target: Annotated[Path | None, typer.Option(metavar="FILE", help="Test data, like --target.")] = None,
    preset: Annotated[
        str | None,
        # Eager: the help lists the settings of the chosen preset, so it must be known before.
        typer.Option(metavar="NAME", is_eager=True),
    ] = None,
    start: Annotated[Path | None, typer.Option("--from", metavar="RUN")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Texts and vocabulary only, no forecast of memory and time.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="As JSON; without a .json file to stdout.")
    ] = None,
) -> None:
    """Look for what would stop a training or spoil it.

    \b
    saccade check --source a.en --target a.de --valid-source v.en --valid-target v.de
    saccade check recipes/multi30k.yaml --test-source data/test.en --test-target data/test.de

    Takes what `saccade train` takes, and trains nothing. Lists all faults of the files with their lines;
    if there are none, goes on to the vocabulary and runs the longest batch once. Exits with 1 if there
    are errors.
    """
    from saccade.training.preflight.inspector import inspect

    if test_target is not None and test_source is None:
        raise UsageError("--test-target is given without --test-source", do="name the file of source lines")
    options: dict[str, Any] = {
        "data.source": [str(path) for path in source or ()] or None,
        "data.target": [str(path) for path in target or ()] or None,
        "data.valid_source": text_of(valid_source),
        "data.valid_target": text_of(valid_target),
        "model.preset": preset,
        "training.start": text_of(start),
        "output": text_of(output),
    }
    config = complete_config(recipe, run_settings(context), options)
    found = inspect(
        config,
        Teller(),
        test_source=text_of(test_source),
        test_target=text_of(test_target),
        with_model=not no_model,
    )
    if json_file is not None:
        write_json_output(json_file, found.to_json())
    else:
        print(printable("\n".join(found.lines()), keep="\n"))
    if found.faulty:
        raise typer.Exit(1)


def text_of(path: Path | None) -> str | None:
    """A path as the settings hold it."""
    return None if path is None else str(path)


def complete_config(recipe: Path | None, settings: dict[str, Any], options: dict[str, Any]) -> RunConfig:
    """The run that `saccade train` would start with the same arguments."""
    from saccade.config import insert
    from saccade.training.config import read_recipe

    for name, value in options.items():
        if value is not None:
            insert(settings, name, value)
    config = apply_settings(partial(read_recipe, recipe) if recipe else config_without_recipe, settings)
    if not config.data.source:
        raise UsageError(
            "no training data is named",
            do="give --source FILE and --target FILE, or a recipe: saccade check recipes/multi30k.yaml",
        )
    if config.output is None:
        name = recipe.stem if recipe else model_name(settings)
        config = config.model_copy(update={"output": str(free_directory(RUNS / name))})
    return config


class Teller:
    """Shows on a terminal how far a long task is."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()

    def say(self, message: str) -> None:
        """Nothing: the result says it all."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """One line that is written anew."""
        if self.shown:
            ended = done == total
            line = "" if ended else f"{what}: {done:,}"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
