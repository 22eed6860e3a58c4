"""`saccade compare`: several models on the same data with the same budget, in one table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.command import SETTINGS, Settings
from saccade.cli.settings import DEFAULT_PRESET, PLAIN, apply_settings, run_settings, written
from saccade.cli.table import table
from saccade.cli.train import check_readable
from saccade.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from saccade.studies.comparison.compare import Outcome
    from saccade.studies.comparison.request import Request

WIDTH = 120  # of a terminal, in columns
GROUPS = ("model", "data", "training", "decoding")
LIMITS = ("training.max-steps", "training.max-epochs", "training.max-minutes")
FRESH = ("training.start", "training.objective", "training.risk")
"""Settings of a training that goes on from another one."""


def compared_rows(_: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every setting that the runs of a comparison can have in common; their length is not one of them."""
    from saccade.config import describe
    from saccade.training.config import RunConfig

    shared = "Any setting that all these models have, such as --model.dropout."
    rows = [row for row in describe(RunConfig) if row[0] not in PLAIN and not row[0].startswith((*LIMITS, *FRESH))]
    return [("model.FIELD", "", shared), *((name, written(default), text) for name, default, text in rows)]


COMPARED = Settings(compared_rows)


def compare(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="RECIPE", help="A YAML file; its data and its decoding are taken, nothing else."),
    ] = None,
    source: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Training data, as in `saccade train`.")
    ] = None,
    target: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Like --source.")] = None,
    valid_source: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation data, like --source.")] = None,
    valid_target: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation data, like --target.")] = None,
    test_source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What every model translates, one sentence a line.")
    ] = None,
    test_reference: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Right answers, line by line; may be given several times.")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Families or presets, with commas between; a family is its first preset."),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(metavar="TIME|TOKENS", help="Of each model: 90s, 10m, 2h of training, or 5Mtok target tokens."),
    ] = "10m",
    sentence: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Draw its alignments.  [default: the first test sentence of 12 to 18 words]"),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Runs, outputs and the report.")] = Path("runs/compare"),
) -> None:
    """Train several models alike and compare them in one table.

    \b
    saccade compare --source a.en --target a.de --valid-source v.en --valid-target v.de \\
        --test-source t.en --test-reference t.de --models seq2seq,luong,transformer --budget 10m
    saccade compare recipes/multi30k.yaml --test-source t.en --test-reference t.de --models bahdanau,transformer

    Each model trains with the settings of its own family, unless a setting below says otherwise. The number of
    updates is planned before, by a short trial on this machine. The same command again goes on where it was
    interrupted. Writes compare.html, compare.md, compare.csv and pictures; exits with 1 if a model failed.
    """
    from saccade.studies.comparison.compare import compare as compare_models

    options = {
        "data.source": [str(path) for path in source or ()],
        "data.target": [str(path) for path in target or ()],
        "data.valid_source": "" if valid_source is None else str(valid_source),
        "data.valid_target": "" if valid_target is None else str(valid_target),
    }
    settings = read_settings(context, recipe, {name: value for name, value in options.items() if value})
    request = read_request(settings, models, budget, test_source, test_reference or [], output, sentence)
    given: dict[str, Any] = {
        "source": source,
        "target": target,
        "valid-source": valid_source,
        "valid-target": valid_target,
        "test-source": test_source,
        "test-reference": test_reference,
        "models": models,
        "budget": budget,
        "sentence": sentence,
        "output": output,
    }
    outcome = compare_models(request, command_line(recipe, given, context.meta[SETTINGS]))
    if outcome.interrupted is not None:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(outcome.interrupted)
    show(outcome, output)
    if outcome.failed:
        raise typer.Exit(1)


def read_settings(context: typer.Context, recipe: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all runs: those of a recipe's data and decoding, then the options."""
    from saccade.config import insert, merge

    settings = run_settings(context)
    for group in settings:
        if group not in GROUPS:
            raise UsageError(f"unknown setting '--{group}.…'", do=did_you_mean(group, GROUPS))
        if not isinstance(settings[group], dict):
            raise UsageError(f"--{group} is a group of settings", do=f"see {context.command_path} --help")
    for name in LIMITS:
        if name.partition(".")[2].replace("-", "_") in settings.get("training", {}):
            raise UsageError(f"--{name} is what --budget decides", do="leave it out, and set --budget")
    for name in ("preset", "family"):
        if name in settings.get("model", {}):
            raise UsageError(f"--model.{name} is what --models decides", do="name the model in --models")
    for name, value in options.items():
        insert(settings, name, value)
    return settings if recipe is None else merge(taken_from(recipe), settings)


def taken_from(recipe: Path) -> dict[str, Any]:
    """What a recipe says about data and decoding; its model and its training are those of one model."""
    from saccade.config import read_yaml
    from saccade.training.config import read_recipe

    said = read_yaml(recipe)
    config = read_recipe(recipe, {} if "model" in said else {"model": {"preset": DEFAULT_PRESET}})
    taken: dict[str, Any] = {}
    for group in ("data", "decoding"):
        values = getattr(config, group).model_dump(mode="json")
        # The config also holds what suits the recipe's model: that is left out again.
        taken[group] = {name: value for name, value in values.items() if name in said.get(group, {})}
    return taken


def read_request(
    settings: Mapping[str, Any],
    models: str | None,
    budget: str,
    test_source: Path | None,
    test_references: Sequence[Path],
    output: Path,
    sentence: str | None,
) -> Request:
    """The whole request, refused at once if it cannot come to an end."""
    from saccade.config import merge
    from saccade.studies.comparison.budget import read_budget
    from saccade.studies.comparison.entries import find_entries
    from saccade.studies.comparison.request import Request

    names = [name.strip() for name in (models or "").split(",") if name.strip()]
    entries = tuple(find_entries(names))
    allowance = read_budget(budget)
    if test_source is None or not test_references:
        raise UsageError("no test set is named", do="give --test-source FILE and --test-reference FILE")
    if sentence is not None and not sentence.strip():
        raise UsageError("--sentence is empty", do="give a sentence, or leave it out")

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
        raise UsageError("no training data is named", do="give --source FILE and --target FILE, or a recipe")
    named = (*data.source, *data.target, data.valid_source, data.valid_target)
    check_readable(str(path) for path in (*named, test_source, *test_references) if path)
    return request


def command_line(recipe: Path | None, given: Mapping[str, Any], dotted: Sequence[str]) -> str:
    """The command that repeats this, on any machine: no path in it begins at the root of this one."""
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
    """The same word, but for an absolute path: from here, or the name alone if it lies elsewhere."""
    path = Path(word)
    if not path.is_absolute():
        return str(word)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def show(outcome: Outcome, output: Path) -> None:
    """The tables and the notes, and where the rest is."""
    from saccade.errors import printable
    from saccade.studies.comparison.tables import fitting, tables_of

    assert outcome.standings is not None
    for one in tables_of(outcome.standings):
        parts = [table(part.cells, right=part.right) for part in fitting(one, WIDTH)]
        print("\n\n".join([f"{one.caption}\n{parts[0]}", *parts[1:]]), end="\n\n")
    for note in outcome.standings.notes:
        print(f"note: {printable(note)}")
    print(f"the same with pictures: {output / 'compare.html'}")
