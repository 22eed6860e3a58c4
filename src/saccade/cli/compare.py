"""`saccade compare`: train several models on the same data and budget, and compare them in one table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade import messages
from saccade.cli.input.sentences import check_sentence
from saccade.cli.options.command import SETTINGS
from saccade.cli.options.help_page import HelpPage, SettingsHelp
from saccade.cli.options.run_help import PLAIN, peak_learning_rate
from saccade.cli.options.settings import apply_settings, parse_run_settings
from saccade.cli.options.training_run import DEFAULT_PRESET, DataOptions, check_readable
from saccade.cli.output.output_paths import check_not_part_of_model
from saccade.cli.output.table import format_table
from saccade.cli.output.task import task
from saccade.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from saccade.studies.comparison.compare import Outcome
    from saccade.studies.comparison.request import Request
    from saccade.training.config import RunConfig

TERMINAL_WIDTH = 120
GROUPS = ("model", "data", "training", "decoding")
LIMITS = ("training.max-steps", "training.max-epochs", "training.max-minutes")
FINE_TUNING = ("training.start", "training.objective", "training.risk")
"""Settings of fine-tuning: a comparison trains every model from scratch."""


def describe_shared(context: Any) -> SettingsHelp:
    """Describe every setting that all runs of a comparison share; a default that differs by model is not shown."""
    from saccade.config_help import SettingHelp, describe
    from saccade.training.config import RunConfig

    found: dict[str, SettingHelp] = {}
    for config in default_configs(context.params.get("models")):
        values = config.model_dump()
        values["training"]["learning_rate"] = peak_learning_rate(config)
        for setting in describe(RunConfig, values):
            known = found.setdefault(setting.name, setting)
            if known.default != setting.default:
                found[setting.name] = setting._replace(default="by model")
    model = SettingHelp("model.FIELD", "", "A model setting that all compared models have, such as --model.dropout.")
    shared = [setting for setting in found.values() if setting.name not in PLAIN]
    return SettingsHelp([model, *(one for one in shared if not one.name.startswith((*LIMITS, *FINE_TUNING)))])


def default_configs(models: str | None) -> list[RunConfig]:
    """Return the default config of each model in a comma-separated list, or of the first preset of every family."""
    from saccade.models.registry import FAMILIES
    from saccade.studies.comparison.request import find_entries
    from saccade.training.config_resolution import resolve_config

    names = [name.strip() for name in models.split(",")] if models else list(FAMILIES)
    return [resolve_config({"model": {"preset": entry.preset}}, where="help") for entry in find_entries(names)]


COMPARE_PAGE = HelpPage(
    describe_shared,
    (
        *("--source", "--target", "--valid-source", "--valid-target", "--test-source", "--test-reference"),
        *("--models", "--budget", "--output", "--sentence"),
        *("--data.vocabulary", "--data.batch-tokens", "--training.metrics", "--decoding.beam", "--training.seed"),
    ),
    "Show all options and exit: settings of data, training and decoding that all models share.",
)


def compare(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="RECIPE", help="A YAML file; only its data and decoding settings are used."),
    ] = None,
    *,
    data: DataOptions,
    test_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Test set: source sentences, one per line.")
    ] = None,
    test_reference: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Reference translations of the test set, one per line. Can be repeated."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Families or presets, separated by commas; a family name means its first preset."
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME|TOKENS", help="Budget of each model: training time (90s, 10m, 2h) or target tokens (5Mtok)."
        ),
    ] = "10m",
    sentence: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Plot the attention for this sentence.  [default: the first test sentence of 12 to 18 words]",
        ),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Directory for runs, outputs and the report.")] = Path(
        "runs/compare"
    ),
) -> None:
    """Train several models on one budget and compare them.

    \b
    saccade compare --source a.en --target a.de --valid-source v.en --valid-target v.de \\
        --test-source t.en --test-reference t.de --models seq2seq,luong,transformer --budget 10m
    saccade compare recipes/multi30k.yaml --test-source t.en --test-reference t.de --models bahdanau,transformer

    Each model trains with the recommended settings of its family, unless a setting below overrides them. A short
    trial on this machine decides the number of updates. After an interruption, the same command continues. Writes
    compare.html, compare.md, compare.csv and plots. Exits with 1 if a model failed.
    """
    from saccade.studies.comparison.compare import compare as compare_models

    check_not_part_of_model("--output", output)
    check_sentence(sentence or "")
    settings = read_settings(context, recipe, data.overrides())
    request = read_request(settings, models, budget, test_source, test_reference or [], output, sentence)
    given: dict[str, Any] = {
        "source": data.source,
        "target": data.target,
        "valid-source": data.valid_source,
        "valid-target": data.valid_target,
        "test-source": test_source,
        "test-reference": test_reference,
        "models": models,
        "budget": budget,
        "sentence": sentence,
        "output": output,
    }
    with task("comparing", bar=False) as work:  # the training log shows the progress
        work.written = "run the same command again to continue"
        outcome = compare_models(request, command_line(recipe, given, context.meta[SETTINGS]))
    if outcome.interrupted is not None:
        messages.warn(f"interrupted; {work.written}")
        raise typer.Exit(outcome.interrupted)
    print_tables(outcome, output)
    work.finish(f"compared {len(request.entries)} models", output / "compare.html")
    if outcome.failed:
        raise typer.Exit(1)


def read_settings(context: typer.Context, recipe: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all runs: data and decoding settings of the recipe, overridden by options."""
    from saccade.config import insert, merge

    settings = parse_run_settings(context)
    for group in settings:
        if group not in GROUPS:
            raise UsageError(f"unknown setting '--{group}.…'", hint=did_you_mean(group, GROUPS))
        if not isinstance(settings[group], dict):
            raise UsageError(f"--{group} is a group of settings", hint=f"see {context.command_path} --help")
    for name in LIMITS:
        if name.partition(".")[2].replace("-", "_") in settings.get("training", {}):
            raise UsageError(f"--{name} is decided by --budget", hint="leave it out, and set --budget")
    for name in ("preset", "family"):
        if name in settings.get("model", {}):
            raise UsageError(f"--model.{name} is decided by --models", hint="name the model in --models")
    for name, value in options.items():
        insert(settings, name, value)
    if recipe is None:
        return settings
    return merge(data_and_decoding(recipe, check_data="source" not in settings.get("data", {})), settings)


def data_and_decoding(recipe: Path, *, check_data: bool) -> dict[str, Any]:
    """Return the data and decoding settings of a recipe; its model and training settings fit one model only."""
    from saccade.config import read_yaml
    from saccade.training.config_resolution import resolve_recipe
    from saccade.training.runs.data_files import check_data_files, recipe_hint

    written = read_yaml(recipe)
    defaults = {} if "model" in written else {"model": {"preset": DEFAULT_PRESET}}
    config = resolve_recipe(recipe, defaults=defaults, absolute_paths=False)
    if check_data:
        check_data_files(config.data, recipe_hint(recipe))
    selected: dict[str, Any] = {}
    for group in ("data", "decoding"):
        values = getattr(config, group).model_dump(mode="json")
        # The config also holds defaults of the recipe's model: keep only what the recipe itself sets.
        selected[group] = {name: value for name, value in values.items() if name in written.get(group, {})}
    return selected


def read_request(
    settings: Mapping[str, Any],
    models: str | None,
    budget: str,
    test_source: Path | None,
    test_references: Sequence[Path],
    output: Path,
    sentence: str | None,
) -> Request:
    """Return the comparison request; raises an error at once if a run of it could not finish."""
    from saccade.config import merge
    from saccade.studies.comparison.budget import read_budget
    from saccade.studies.comparison.request import Request, find_entries

    names = [name.strip() for name in (models or "").split(",") if name.strip()]
    entries = tuple(find_entries(names))
    allowance = read_budget(budget)
    if test_source is None or not test_references:
        raise UsageError("no test set is named", hint="give --test-source FILE and --test-reference FILE")
    if sentence is not None and not sentence.strip():
        raise UsageError("--sentence is empty", hint="give a sentence, or leave it out")

    def make(given: Mapping[str, Any]) -> Request:
        files = {name: value for name, value in settings.get("data", {}).items() if name in ("source", "target")}
        request = Request(
            entries,
            merge({"data": files}, given),
            allowance,
            test_source,
            tuple(test_references),
            output,
            sentence,
        )
        request.check()
        return request

    request = apply_settings(make, settings)
    data = request.config(entries[0]).data
    if not data.source:
        raise UsageError("no training data is named", hint="give --source FILE and --target FILE, or a recipe")
    named = (*data.source, *data.target, data.valid_source, data.valid_target)
    check_readable(str(path) for path in (*named, test_source, *test_references) if path)
    return request


def command_line(recipe: Path | None, given: Mapping[str, Any], dotted: Sequence[str]) -> str:
    """Return the command that repeats this comparison on any machine: it contains no absolute path."""
    lines = [["saccade", "compare", *([portable(recipe)] if recipe else [])]]
    for name, value in given.items():
        several = value if isinstance(value, list) else [value]
        lines += [[f"--{name}", portable(one)] for one in several if one is not None]
    for word in dotted:
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            lines.append([f"{option}{equals}{portable(value)}"])
        else:
            lines[-1].append(portable(word))
    return " \\\n  ".join(shlex.join(line) for line in lines)


def portable(word: str | Path) -> str:
    """Return an absolute path relative to the current directory, or its last name; other words stay as they are."""
    path = Path(word)
    if not path.is_absolute():
        return str(word)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def print_tables(outcome: Outcome, output: Path) -> None:
    """Print the tables, the notes and the path of the full report."""
    from saccade.errors import printable
    from saccade.studies.comparison.tables import make_tables, split_table

    assert outcome.scores is not None
    for table in make_tables(outcome.scores):
        parts = [format_table(part.cells, right=part.right) for part in split_table(table, TERMINAL_WIDTH)]
        print("\n\n".join([f"{table.caption}\n{parts[0]}", *parts[1:]]), end="\n\n")
    for note in outcome.scores.notes:
        print(f"note: {printable(note)}")
    print(f"report with plots: {output / 'compare.html'}")
