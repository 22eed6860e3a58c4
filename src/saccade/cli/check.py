"""`saccade check`: find problems in data and settings before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade import messages
from saccade.cli.options.help_page import HelpPage
from saccade.cli.options.run_help import TRAIN_OPTIONS, TRAIN_REST, describe_run
from saccade.cli.options.settings import parse_run_settings
from saccade.cli.options.training_run import Recipe, RunOptions, new_run_config
from saccade.cli.output.json_output import JsonFile, write_json_output
from saccade.errors import UsageError, printable

CHECK_PAGE = HelpPage(
    describe_run,
    (
        *(name for name in TRAIN_OPTIONS if name not in ("--resume", "--output")),
        *("--test-source", "--test-target", "--no-model", "--json"),
    ),
    TRAIN_REST,
)


def check(
    context: typer.Context,
    recipe: Recipe = None,
    *,
    options: RunOptions,
    test_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Test data, like --source: searched for in the training data.")
    ] = None,
    test_target: Annotated[Path | None, typer.Option(metavar="FILE", help="Test data, like --target.")] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Check only data and vocabulary; no memory and time forecast.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Find problems in data and settings before training.

    \b
    saccade check --source a.en --target a.de --valid-source v.en --valid-target v.de
    saccade check recipes/multi30k.yaml --test-source data/test.en --test-target data/test.de

    Accepts the options of `saccade train` and trains nothing. Lists every problem in the files with its line
    numbers. If there is none, checks the vocabulary and runs the longest batch once. Exits with 1 if
    there are errors.
    """
    from saccade.training.preflight.inspector import inspect
    from saccade.training.runs.console_progress import ConsoleProgress
    from saccade.training.runs.data_files import is_data_missing, recipe_hint

    if test_target is not None and test_source is None:
        raise UsageError("--test-target is given without --test-source", hint="name the file of source sentences")
    config = new_run_config(recipe, parse_run_settings(context), options, command="check", absolute_paths=False)
    with ConsoleProgress(show_messages=False) as listener:  # the report repeats the messages
        report = inspect(
            config,
            listener,
            test_source=None if test_source is None else str(test_source),
            test_target=None if test_target is None else str(test_target),
            with_model=not no_model,
        )
    if json_file is not None:
        write_json_output(json_file, report.to_json())
    else:
        print(printable("\n".join(report.lines()), keep="\n"))
    if recipe is not None and not options.source and is_data_missing(config.data):
        messages.warn(printable(recipe_hint(recipe), keep="\n"))
    if report.has_errors:
        raise typer.Exit(1)
