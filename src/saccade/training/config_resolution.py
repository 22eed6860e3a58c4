"""Resolution of the config of a run: settings, recipe, start model and defaults of the family become one `RunConfig`.

A command resolves its config once and passes the result on; the run directory stores it as config.yaml. What depends on
the machine (`device: auto`, `precision: auto`, the number of threads) stays as given, so that a run can be resumed on
another machine: `compute_settings` decides it when a process starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from saccade.config import build, hyphenated, merge, read_yaml, underscored
from saccade.data.config import MODEL_SUFFIX, require_model_file
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import find_metric
from saccade.models.family import Family
from saccade.models.registry import choose, load_family
from saccade.training.checkpoints.start_settings import (
    fill_from_start,
    find_start_folder,
    has_start_settings,
    is_gone,
    start_path,
)
from saccade.training.config import RunConfig, TrainingConfig
from saccade.training.runs.data_files import DATA_FILES, data_root
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.resumable_directory import check_run_directory

FINE_TUNING: Mapping[str, Any] = {"learning_rate": 5e-5, "schedule": "constant", "warmup_steps": 100}
"""Defaults when training starts from a trained model: the learning rate of a new model would destroy its weights."""

LIMITS = ("max_steps", "max_epochs", "max_minutes")

FROM_SCRATCH = frozenset({*FINE_TUNING, *LIMITS, "optimizer"})
"""Settings in a family's recipe that apply only to training from scratch."""

TOKENIZERS = ("tokenizer", "target_tokenizer")  # data settings that may be the path of a SentencePiece model


def resolve_config(values: Mapping[str, Any], *, where: str, absolute_paths: bool = True) -> RunConfig:
    """Resolve the settings of a new run into its final config.

    Missing settings are filled from the start model and from the recipe of the model family, model settings are
    validated, and paths become absolute. Resolving a resolved config returns an equal one. `saccade check` keeps paths
    as given, because its report shows them.
    """
    values = underscored(values)
    try:
        filled = fill_defaults(values, where=where)
    except SaccadeError:
        build(RunConfig, values, where=where)  # report a misspelt setting first
        raise
    return build_run_config(filled, where=where, absolute_paths=absolute_paths)


def resolve_recipe(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    absolute_paths: bool = True,
) -> RunConfig:
    """Resolve a YAML recipe over `defaults` and under `overrides`; its data paths are relative to $SACCADE_DATA."""
    values = with_data_folder(read_yaml(path))
    if overrides:
        check_recipe_fits_start(underscored(values), underscored(overrides), where=str(path))
    settings = merge(merge(defaults or {}, values), overrides or {})
    return resolve_config(settings, where=str(path), absolute_paths=absolute_paths)


def load_saved_config(path: Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Load the config.yaml of a run; it is complete, so recipes of another version do not change it."""
    return build_run_config(merge(read_yaml(path), underscored(overrides or {})), where=str(path))


class ResumedConfig(NamedTuple):
    """The config a run was started with and the config it continues with."""

    directory: RunDirectory
    before: RunConfig
    config: RunConfig


def resolve_resumed(path: Path, overrides: Mapping[str, Any] | None = None) -> ResumedConfig:
    """Resolve the config of a run that is resumed from its run directory."""
    directory = RunDirectory(Path(path))
    check_run_directory(directory)
    before = load_saved_config(directory.config)
    config = load_saved_config(directory.config, {**(overrides or {}), "output": str(path)})
    return ResumedConfig(directory, before, config)


def build_run_config(values: Mapping[str, Any], *, where: str, absolute_paths: bool = True) -> RunConfig:
    """Build a run config from complete settings; it contains all settings of the model."""
    config = build(RunConfig, values, where=where)
    choice = choose(config.model, where=f"{where}, model")
    changes: dict[str, Any] = {"model": choice.dump()}
    if absolute_paths:
        files = {name: absolute(getattr(config.data, name)) for name in DATA_FILES}
        files |= {name: absolute(path) for name in TOKENIZERS if is_model_file(path := getattr(config.data, name))}
        changes["data"] = config.data.model_copy(update=files)
        changes["training"] = config.training.model_copy(update={"start": absolute(config.training.start)})
    return config.model_copy(update=changes)


def is_model_file(setting: Any) -> bool:
    """Return whether a tokenizer setting is the path of a SentencePiece model."""
    return isinstance(setting, str) and setting.endswith(MODEL_SUFFIX)


def absolute(paths: Any) -> Any:
    """Return a path or a tuple of paths as absolute paths; None stays None."""
    if isinstance(paths, tuple):
        return tuple(str(Path(path).absolute()) for path in paths)
    return None if paths is None else str(Path(paths).absolute())


def with_data_folder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe with data paths under $SACCADE_DATA, by default ./data."""
    data = values.get("data")
    if not isinstance(data, Mapping):
        return dict(values)
    root = data_root()
    files: dict[str, Any] = {}
    for key in data.keys() & set(DATA_FILES):
        given = data[key]
        if isinstance(given, str):
            files[key] = str(root / given)
        elif isinstance(given, list):  # items that are not strings are rejected when the config is built
            files[key] = [str(root / path) if isinstance(path, str) else path for path in given]
    files |= {key: str(root / data[key]) for key in data.keys() & set(TOKENIZERS) if is_model_file(data[key])}
    return {**values, "data": {**data, **files}}


def check_recipe_fits_start(recipe: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str) -> None:
    """Reject a recipe for training from scratch with a start model, unless rate and limits are given explicitly."""
    start = start_path(overrides)
    if start is None:
        return
    find_start_folder(start)
    given, explicit = recipe.get("training"), overrides["training"]
    if start_path(recipe) is not None or not isinstance(given, Mapping):
        return
    from_scratch = {
        name: given[name]
        for name in FINE_TUNING
        if name in given and not equals_default(given[name], FINE_TUNING[name])
    }
    if not explicit.keys() & set(LIMITS):
        from_scratch |= {name: given[name] for name in LIMITS if given.get(name) is not None}
    conflicts = {name: value for name, value in from_scratch.items() if name not in explicit}
    if conflicts:
        listed = ", ".join(
            f"{hyphenated(name)} {'unset' if value is None else value}" for name, value in conflicts.items()
        )
        usual = {hyphenated(name): FINE_TUNING.get(name, value) for name, value in conflicts.items()}
        raise SaccadeError(
            f"{where} is a recipe for training from scratch, not for starting from {start}: {listed}",
            hint="give these settings, for example: "
            + " ".join(f"--training.{name} {value}" for name, value in usual.items()),
        )


def equals_default(given: Any, default: Any) -> bool:
    """Return whether a setting of a recipe, perhaps a number as a string, equals a default."""
    try:
        return float(given) == float(default)
    except (TypeError, ValueError):
        return bool(given == default)


def fill_defaults(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Fill unvalidated settings with the recipe of the model family, and with the defaults of fine-tuning.

    The function is idempotent. A resolved config of a fine-tuned run does not need the start folder any more.
    """
    start = start_path(values)
    if start is not None and not (has_start_settings(values) and is_gone(start)):
        values = fill_from_start(values, start, where=where)
    model = values.get("model", {})
    family = load_family(choose(model, where=f"{where}, model").family)
    recipe = merge(underscored(family.recipe), preset_recipe(family, model.get("preset"), values))
    if start is not None:
        suited = {name: value for name, value in recipe.get("training", {}).items() if name not in FROM_SCRATCH}
        recipe = {**recipe, "training": {**suited, **FINE_TUNING, **risk_criterion(values)}}
    return merge(recipe, values)


def preset_recipe(family: Family, preset: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of a preset; its training settings apply only with its optimizer."""
    recipe = underscored(family.preset_recipes.get(preset, {})) if isinstance(preset, str) else {}
    training, given = recipe.get("training", {}), values.get("training")
    chosen = given.get("optimizer") if isinstance(given, Mapping) else None
    return {**recipe, "training": {}} if chosen not in (None, training.get("optimizer")) else dict(recipe)


def risk_criterion(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default criterion of minimum risk with validation data: a metric, because the loss may increase."""
    training, data = values.get("training", {}), values.get("data", {})
    if not isinstance(data, Mapping) or training.get("objective") != "minimum-risk":
        return {}
    metrics = training.get("metrics", TrainingConfig.model_fields["metrics"].default)
    validated = data.get("valid_source") or str(data.get("hold_out", 0)) != "0"
    return {"criterion": metrics[0]} if validated and isinstance(metrics, list | tuple) and metrics else {}


def check_complete(config: RunConfig) -> None:
    """Reject a config without training data or run directory, or whose validation cannot work."""
    if not config.data.source:
        raise SaccadeError("no training data", hint="give --source and --target, or a recipe")
    if config.output is None:
        raise SaccadeError("no run directory", hint="give --output runs/NAME")
    if config.training.start is None:  # a start model has its own tokenizers
        require_model_file(config.data.tokenizer)
        require_model_file(config.data.target_setting)
    check_validation(config)


def check_validation(config: RunConfig) -> None:
    """Reject an unknown metric, and early stopping or a criterion without validation data."""
    needs_validation = config.training.patience or config.training.criterion != "loss"
    if needs_validation and not (config.data.valid_source or config.data.hold_out):
        raise SaccadeError(
            "early stopping and a criterion need validation data", hint="give --valid-source, or --data.hold-out 500"
        )
    check_metrics(config.training)


def check_metrics(training: TrainingConfig) -> None:
    """Reject an unknown validation metric."""
    for name in training.metrics:
        find_metric(name)
