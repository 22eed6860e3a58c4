"""`saccade train`: a file of pairs, or a recipe, becomes a model folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.errors import INTERRUPTED, TERMINATED
from saccade.cli.settings import DEFAULT_PRESET, apply_settings, run_settings
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.training.config import RunConfig
    from saccade.training.run import RunResult

RUNS = Path("runs")


def train(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="RECIPE", help="A YAML file; its data is relative to $SACCADE_DATA (./data)."),
    ] = None,
    source: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Source lines; or, without --target, pairs as .tsv, .jsonl or .parquet. May be given several times.",
        ),
    ] = None,
    target: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Target lines, one for each source line; one file for each --source."),
    ] = None,
    valid_source: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation data, like --source.")] = None,
    valid_target: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation data, like --target.")] = None,
    preset: Annotated[
        str | None,
        # Eager: the help lists the settings of the chosen preset, so it must be known before.
        typer.Option(metavar="NAME", is_eager=True, help=f"See `saccade models`.  [default: {DEFAULT_PRESET}]"),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RUN", help="Start from the weights, settings and tokenizers of a run or model."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new run directory.  [default: runs/NAME-N, N the first free number]"),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue this run in place.")] = None,
) -> None:
    """Train a model on pairs.

    \b
    saccade train --source a.en --target a.de --valid-source v.en --valid-target v.de --output runs/x
    saccade train recipes/multi30k.yaml --training.learning-rate 7e-4
    saccade train --resume runs/x
    saccade train --from runs/x --source b.en --target b.de --output runs/y

    Ctrl-C saves and leaves; --resume goes on. Every setting below is an option too.
    """
    options = {
        "data.source": source,
        "data.target": target,
        "data.valid_source": valid_source,
        "data.valid_target": valid_target,
        "model.preset": preset,
        "training.start": start,
        "output": output,
    }
    given = {name: written(value) for name, value in options.items() if value}
    settings = run_settings(context)
    if resume is not None:
        if recipe is not None or given:
            raise UsageError(
                "--resume goes on with the data and the model of the run",
                do="leave out everything else but settings such as --training.max-steps",
            )
        result = resume_run(resume, settings)
    else:
        result = start_run(recipe, settings, given)
    if result.interrupted is not None:
        raise typer.Exit(TERMINATED if result.interrupted == "SIGTERM" else INTERRUPTED)


def written(value: str | Path | list[Path]) -> str | list[str]:
    """An option as the settings hold it."""
    return [str(path) for path in value] if isinstance(value, list) else str(value)


def resume_run(path: Path, settings: dict[str, Any]) -> RunResult:
    """Go on with a run; its own settings may be changed."""
    from saccade.config import merge, read_yaml
    from saccade.training.config import run_config
    from saccade.training.run import resume
    from saccade.training.run_directory import RunDirectory

    config = RunDirectory(path).config
    if settings and config.is_file():
        saved = read_yaml(config)
        apply_settings(lambda changes: run_config(merge(saved, changes), where=str(config), saved=True), settings)
    return resume(path, settings)


def start_run(recipe: Path | None, settings: dict[str, Any], given: Mapping[str, str | list[str]]) -> RunResult:
    """Train into a new directory."""
    from saccade.config import insert
    from saccade.training.config import read_recipe
    from saccade.training.run import train as train_run

    for name, value in given.items():
        insert(settings, name, value)
    config = apply_settings(partial(read_recipe, recipe) if recipe else config_without_recipe, settings)
    if not config.data.source:
        raise UsageError(
            "no training data is named",
            do="give --source FILE and --target FILE, or a recipe: saccade train recipes/multi30k.yaml",
        )
    data = config.data
    check_readable(path for path in (*data.source, *data.target, data.valid_source, data.valid_target) if path)
    if config.output is None:
        name = recipe.stem if recipe else model_name(settings)
        config = config.model_copy(update={"output": str(free_directory(RUNS / name))})
    return train_run(config)


def config_without_recipe(settings: Mapping[str, Any]) -> RunConfig:
    """A run from settings alone, with the default preset if they name no model."""
    from saccade.config import merge
    from saccade.training.config import run_config

    named = "preset" in settings.get("model", {}) or "family" in settings.get("model", {}) or start_name(settings)
    base = {} if named else {"model": {"preset": DEFAULT_PRESET}}
    return run_config(merge(base, settings), where="settings")


def model_name(settings: Mapping[str, Any]) -> str:
    """What a run without a recipe is called after."""
    model = settings.get("model", {})
    return start_name(settings) or str(model.get("preset") or model.get("family") or DEFAULT_PRESET)


def start_name(settings: Mapping[str, Any]) -> str | None:
    """What the run is called that the settings start from, if they do."""
    start = settings.get("training", {}).get("start")
    if not start:
        return None
    path = Path(start).absolute()
    return path.parent.name if path.name.startswith("model-") else path.name


def check_readable(paths: Iterable[str]) -> None:
    """Refuse a file that cannot be opened before a run directory is made for it."""
    from saccade.data.reading.pair_files import open_bytes, unreadable

    for path in paths:
        try:
            open_bytes(path).close()
        except OSError as error:
            raise unreadable(path, error) from None


def free_directory(stem: Path) -> Path:
    """`stem-N` with the first number that is not taken."""
    number = 1
    while (path := stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return path
