"""Options that describe a training run: the recipe, data files, model and output directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options.settings import apply_settings
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.data.config import DataConfig
    from saccade.training.config import RunConfig

RUNS = Path("runs")
DEFAULT_PRESET = "transformer-tiny"

Recipe = Annotated[
    Path | None,
    typer.Argument(
        metavar="RECIPE", help="A YAML file of settings; its data paths are relative to $SACCADE_DATA, or to ./data."
    ),
]


@dataclass(frozen=True)
class DataOptions:
    """Training and validation files."""

    source: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Training data: source sentences, one per line; or, without --target, sentence pairs as "
            ".tsv, .csv, .jsonl or .parquet (columns source and target). Can be repeated.",
        ),
    ] = None
    target: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Target sentences, one per source line; one file for each --source."),
    ] = None
    valid_source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Validation data in the format of --source; or --data.hold-out 500: this many random training pairs.",
        ),
    ] = None
    valid_target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Validation data in the format of --target.")
    ] = None

    def overrides(self) -> dict[str, str | list[str]]:
        """Return the given options as values of dotted settings."""
        values: dict[str, Path | list[Path] | None] = {
            "data.source": self.source,
            "data.target": self.target,
            "data.valid_source": self.valid_source,
            "data.valid_target": self.valid_target,
        }
        return {name: setting_value(value) for name, value in values.items() if value}


@dataclass(frozen=True)
class RunOptions(DataOptions):
    """Everything that defines a new run, except dotted settings."""

    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"A model size from `saccade models`.  [default: {DEFAULT_PRESET}]"),
    ] = None
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Fine-tune the model of this run or model folder; keeps its settings and tokenizers.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new run directory, for model, checkpoints and logs.  "
            "[default: runs/, then preset or recipe and a number]",
        ),
    ] = None

    def overrides(self) -> dict[str, str | list[str]]:
        """Return the given options as values of dotted settings."""
        values = {"model.preset": self.preset, "training.start": self.start, "output": self.output}
        return super().overrides() | {name: setting_value(value) for name, value in values.items() if value}


def setting_value(value: str | Path | list[Path]) -> str | list[str]:
    """Return the value of an option as settings hold it."""
    return [str(path) for path in value] if isinstance(value, list) else str(value)


def new_run_config(
    recipe: Path | None, settings: dict[str, Any], options: RunOptions, *, command: str, absolute_paths: bool = True
) -> RunConfig:
    """Return the resolved config of a new run; `command` is named in error messages."""
    from saccade.config import insert
    from saccade.training.config_resolution import check_metrics, check_validation

    for name, value in options.overrides().items():
        insert(settings, name, value)
    defaults = {"output": str(free_directory(RUNS / (recipe.stem if recipe else default_run_name(settings))))}

    def resolve(given: Mapping[str, Any]) -> RunConfig:
        config = resolve_run(recipe, given, defaults=defaults, absolute_paths=absolute_paths)
        check_metrics(config.training)
        if command == "train":  # `saccade check` reports it together with problems in the data
            check_validation(config)
        return config

    config = apply_settings(resolve, settings, command=f"saccade {command}")
    if not config.data.source:
        raise UsageError(
            "no training data is named",
            hint=f"give --source FILE and --target FILE, or a recipe: saccade {command} recipes/multi30k.yaml",
        )
    return config


def resolve_run(
    recipe: Path | None, settings: Mapping[str, Any], *, defaults: Mapping[str, Any], absolute_paths: bool = True
) -> RunConfig:
    """Return the config of a run from a recipe, or from the default preset if the settings name no model."""
    from saccade.config import merge
    from saccade.training.config_resolution import resolve_config, resolve_recipe

    if recipe is not None:
        return resolve_recipe(recipe, settings, defaults=defaults, absolute_paths=absolute_paths)
    values = merge({**defaults, **default_model(settings)}, settings)
    return resolve_config(values, where="settings", absolute_paths=absolute_paths)


def default_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default preset, if the settings name no model."""
    model = settings.get("model", {})
    named = "preset" in model or "family" in model or start_name(settings)
    return {} if named else {"model": {"preset": DEFAULT_PRESET}}


def default_run_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a run without a recipe: that of the run it starts from, its preset or its family."""
    model = settings.get("model", {})
    return start_name(settings) or str(model.get("preset") or model.get("family") or DEFAULT_PRESET)


def start_name(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the run that `--from` names, if any."""
    start = settings.get("training", {}).get("start")
    if not isinstance(start, str) or not start:  # anything else is rejected when the config is built
        return None
    path = Path(start).absolute()
    return path.parent.name if path.name.startswith("model-") else path.name


def check_readable(paths: Iterable[str]) -> None:
    """Raise an error for a file that cannot be opened, before a run directory is created."""
    from saccade.data.reading.pair_files import open_bytes, unreadable

    for path in paths:
        try:
            open_bytes(path).close()
        except OSError as error:
            raise unreadable(path, error) from None


def check_targets(data: DataConfig) -> None:
    """Raise an error for a file of single sentences without a target file, before a run directory is created."""
    from saccade.data.reading.pair_files import pair_reader
    from saccade.data.reading.text_lines import FileError

    alone = [("--target", path) for path in data.source if not data.target]
    if data.valid_source and not data.valid_target:
        alone.append(("--valid-target", data.valid_source))
    for option, path in alone:
        try:
            pair_reader(path)
        except FileError as error:
            if error.kind != "no-target":
                raise
            raise UsageError(
                f"{path} has one text per line, and no {option} is given",
                hint=f"give {option} FILE, or one file of pairs ending in .tsv, .csv, .jsonl or .parquet",
            ) from None


def free_directory(stem: Path) -> Path:
    """`stem-N` with the first number that is not taken."""
    number = 1
    while (path := stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return path
