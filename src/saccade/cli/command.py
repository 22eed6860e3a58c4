"""What all verbs have in common as commands: strict options, dotted settings beside them, and `--json [FILE]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from saccade.cli.errors import sentence
from saccade.cli.json_output import STANDARD_OUTPUT
from saccade.errors import UsageError, nearest

SETTINGS = "saccade.settings"


@dataclass(frozen=True)
class Settings:
    """The dotted settings that a verb takes."""

    rows: Callable[[Mapping[str, Any]], list[tuple[str, str, str]]]
    """From the plain options given so far to (dotted name, default, help) of every setting."""


class Verb(TyperCommand):
    """A command that refuses unknown options with the nearest valid one."""

    settings: ClassVar[Settings | None] = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the dotted settings apart, so that they may stand anywhere, and let typer parse the rest strictly."""
        dotted: list[str] = []
        if self.settings is not None:
            args, dotted = separate(args)
        if any("--json" in parameter.opts for parameter in self.params):
            args = complete_json(args)
        ctx.meta[SETTINGS] = dotted
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            name = getattr(error, "option_name", None)
            if name is None or name in self.plain_options(ctx):
                raise UsageError(sentence(error), do=f"see {ctx.command_path} --help") from None
            raise self.unknown_option(name, ctx) from None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """List the dotted settings after the plain options."""
        if self.settings is None:
            return
        for group, rows in groupby(self.settings.rows(ctx.params), key=lambda row: row[0].partition(".")[0]):
            with formatter.section(f"Settings of the {group}"):
                formatter.write_dl([(f"--{name}", with_default(text, default)) for name, default, text in rows])

    def plain_options(self, ctx: Any) -> list[str]:
        """The names of all options that are no settings."""
        return [name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)]

    def unknown_option(self, name: str, ctx: Any) -> UsageError:
        """The error that names the nearest option or setting."""
        settings = [f"--{row[0]}" for row in self.settings.rows(ctx.params)] if self.settings is not None else []
        guess = nearest(name, [option for option in self.plain_options(ctx) if option.startswith("--")] + settings)
        advice = f"did you mean '{guess}'? " if guess else ""
        return UsageError(f"unknown option '{name}'", do=f"{advice}see {ctx.command_path} --help")


def with_default(text: str, default: str) -> str:
    """A help text that ends with the default, if there is one."""
    return text if default in ("", "None") else f"{text}  [default: {default}]"


def verb_with_settings(settings: Settings) -> type[Verb]:
    """The class of a verb that takes dotted settings."""
    return type("VerbWithSettings", (Verb,), {"settings": settings})


def separate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Plain arguments, and dotted settings with their values; what follows `--` is plain."""
    plain: list[str] = []
    dotted: list[str] = []
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if argument == "--":
            return [*plain, argument, *pending], dotted
        name, equals, _ = argument.partition("=")
        if not (name.startswith("--") and "." in name and " " not in name):
            plain.append(argument)
            continue
        dotted.append(argument)
        if not equals and pending and not pending[0].startswith("--"):
            dotted.append(pending.pop(0))
    return plain, dotted


def complete_json(arguments: Sequence[str]) -> list[str]:
    """The same arguments, but a `--json` without a file (whose name ends in .json) writes to the standard output."""
    completed: list[str] = []
    for place, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument == "--json" and not (following.endswith(".json") or following == STANDARD_OUTPUT):
            completed.append(STANDARD_OUTPUT)
    return completed
