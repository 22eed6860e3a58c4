"""Help on the settings of a training run, with the defaults that a preset, a recipe or a run implies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.cli.options.command import SETTINGS
from saccade.cli.options.help_page import SettingsHelp
from saccade.cli.options.settings import apply_settings, parse_run_settings
from saccade.cli.options.training_run import DEFAULT_PRESET, resolve_run
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.config_help import SettingHelp
    from saccade.training.config import RunConfig

SCHEDULE = ("training.optimizer", "training.learning-rate", "training.warmup-steps", "training.schedule")
"""Settings whose defaults are always listed: they differ from preset to preset."""
DATA_FILES = ("data.source", "data.target", "data.valid-source", "data.valid-target")
PLAIN = frozenset({*DATA_FILES, "output", "model", "training.start"})
"""Settings of a run that have a plain option, and the model settings, which are listed by family."""

TRAIN_OPTIONS = (
    *("--source", "--target", "--valid-source", "--valid-target", "--output", "--preset"),
    *("--training.max-minutes", "--training.max-steps", "--training.learning-rate"),
    *("--data.vocabulary", "--data.batch-tokens", "--training.metrics", "--training.valid-beam"),
    *("--from", "--resume"),
)
"""The most common options, in the order of use."""

TRAIN_REST = (
    "Show all options and exit: epochs, early stopping, optimizer and schedule, dropout and layers, tokenizers, "
    "held-out data, gradient accumulation, checkpoints, seed, device, precision, threads, decoding, mixture of "
    "experts, minimum risk."
)


def describe_run(context: Any) -> SettingsHelp:
    """Describe every setting of the run that the options select, with the defaults that it would have."""
    from saccade.config_help import describe
    from saccade.training.config import RunConfig

    config, name = config_of_options(context)
    values = config.model_dump()
    values["training"]["learning_rate"] = peak_learning_rate(config)
    found = describe_model(config)
    found += [setting for setting in describe(RunConfig, values) if setting.name not in PLAIN]
    usual = {setting.name: setting.default for setting in describe(RunConfig)}
    defaults = {setting.name: setting.default for setting in found if setting.name.startswith("training.")}
    changed = [key for key, default in defaults.items() if default != usual[key]]
    listed = ", ".join(f"{key} {defaults[key]}" for key in dict.fromkeys((*SCHEDULE, *changed)))
    return SettingsHelp(found, f"The defaults are those of {name}: {listed}.")


def describe_model(config: RunConfig) -> list[SettingHelp]:
    """Describe the settings of the model's family."""
    from saccade.config_help import SettingHelp, describe
    from saccade.models.registry import FAMILIES, load_family

    family = str(config.model["family"])
    text = "A model family instead of a preset: the defaults of its paper."
    settings = describe(load_family(family).config, config.model, "model.")
    return [SettingHelp("model.family", "|".join(FAMILIES), text, family), *settings]


def config_of_options(context: Any) -> tuple[RunConfig, str]:
    """Return the config that the parsed options imply, without data files, and the name of what it comes from."""
    from saccade.config import insert, merge
    from saccade.training.config_resolution import load_saved_config
    from saccade.training.runs.directory import RunDirectory

    options = context.params
    if options.get("resume"):
        return load_saved_config(RunDirectory(Path(options["resume"])).config), str(options["resume"])
    recipe, preset, start = (options.get(name) for name in ("recipe", "preset", "start"))
    named: dict[str, Any] = {}
    for name, value in (("model.preset", preset), ("training.start", start)):
        if value is not None:
            insert(named, name, str(value))
    source = " and ".join(str(one) for one in (recipe, start, preset) if one is not None) or DEFAULT_PRESET
    if context.meta.get(SETTINGS):
        try:
            settings = merge(parse_run_settings(context), named)
            return resolve_run(recipe, settings, defaults={}), source
        except SaccadeError:  # the settings are incomplete or wrong: show the help without them
            pass
    return apply_settings(lambda given: resolve_run(recipe, given, defaults={}), named), source


def peak_learning_rate(config: RunConfig) -> float:
    """Return the peak learning rate, by default that of the paper for this width, in three digits."""
    from saccade.training.learning_rate_schedule import noam_peak

    peak = noam_peak(config.choice().config.width, config.training.warmup_steps)
    return config.training.learning_rate or float(f"{peak:.3g}")
