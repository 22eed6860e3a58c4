"""`saccade train`: train a model on sentence pairs, or from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options.help_page import HelpPage
from saccade.cli.options.run_help import TRAIN_OPTIONS, TRAIN_REST, describe_run
from saccade.cli.options.settings import apply_settings, parse_run_settings
from saccade.cli.options.training_run import Recipe, RunOptions, check_targets, new_run_config
from saccade.cli.output.errors import signal_exit_code
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.training.config_resolution import ResumedConfig
    from saccade.training.run import RunResult

TRAIN_PAGE = HelpPage(describe_run, TRAIN_OPTIONS, TRAIN_REST)


def train(
    context: typer.Context,
    recipe: Recipe = None,
    *,
    options: RunOptions,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Continue an interrupted or crashed run from its last checkpoint."),
    ] = None,
) -> None:
    """Train a model on sentence pairs.

    \b
    saccade train --source a.en --target a.de --valid-source v.en --valid-target v.de --output runs/x
    saccade train recipes/multi30k.yaml --training.max-minutes 30
    saccade train --resume runs/x
    saccade train --from runs/x --source b.en --target b.de --output runs/y

    Training stops after 30 epochs unless a limit is given. The best model by validation is in model-best of the run
    directory. Ctrl-C saves a checkpoint and exits; --resume continues from it.

    `saccade train --preset NAME --help` shows the defaults of a preset; the same with RECIPE, --from or --resume.
    """
    settings = parse_run_settings(context)
    if resume is not None:
        if recipe is not None or options.overrides():
            raise UsageError(
                "--resume uses the data and the model of the run",
                hint="leave out everything except settings such as --training.max-steps",
            )
        result = resume_run(resume, settings)
    else:
        result = start_run(recipe, settings, options)
    if result.interrupted is not None:
        raise typer.Exit(signal_exit_code(result.interrupted))


def resume_run(path: Path, settings: dict[str, Any]) -> RunResult:
    """Resume a run with changed settings."""
    from saccade.training.checkpoints.resume_checks import check_resumable
    from saccade.training.config_resolution import resolve_resumed
    from saccade.training.run import continue_run

    def resolve(given: Mapping[str, Any]) -> ResumedConfig:
        resumed = resolve_resumed(path, given)
        check_resumable(resumed.before, resumed.config)
        return resumed

    return continue_run(apply_settings(resolve, settings))


def start_run(recipe: Path | None, settings: dict[str, Any], options: RunOptions) -> RunResult:
    """Start a run in a new run directory."""
    from saccade.training.run import train as train_run
    from saccade.training.runs.data_files import check_data_files, recipe_hint

    config = new_run_config(recipe, settings, options, command="train")
    check_data_files(config.data, recipe_hint(recipe) if recipe is not None and not options.source else None)
    check_targets(config.data)
    return train_run(config)
