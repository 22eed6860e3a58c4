"""The class of every command: strict option parsing, dotted settings such as `--model.dropout`, and `--json [FILE]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from saccade.cli.output.errors import parser_message
from saccade.cli.output.json_output import STANDARD_OUTPUT
from saccade.errors import UsageError, nearest

SETTINGS = "saccade.settings"  # key of the unparsed dotted settings in a typer context

SettingHelp = tuple[str, str, str]  # dotted name, default, help text


@dataclass(frozen=True)
class Settings:
    """The dotted settings that a command accepts."""

    describe: Callable[[Mapping[str, Any]], list[SettingHelp]]
    """Lists all settings; its argument holds the plain options parsed so far, such as --preset."""


class Command(TyperCommand):
    """A command that answers an unknown option with the nearest valid one."""

    settings: ClassVar[Settings | None] = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remove the dotted settings, which may appear anywhere, and let typer parse the other arguments."""
        dotted: list[str] = []
        if self.settings is not None:
            args, dotted = split_dotted(args)
        if any("--json" in parameter.opts for parameter in self.params):
            args = complete_json(args)
        ctx.meta[SETTINGS] = dotted
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            name = getattr(error, "option_name", None)
            if name is None or name in self.plain_options(ctx):
                raise UsageError(parser_message(error), hint=f"see {ctx.command_path} --help") from None
            raise self.unknown_option(name, ctx) from None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """List the dotted settings after the plain options, in one section per group."""
        if self.settings is None:
            return
        for group, rows in groupby(self.settings.describe(ctx.params), key=lambda row: row[0].partition(".")[0]):
            with formatter.section(f"{group.capitalize()} settings"):
                formatter.write_dl([(f"--{name}", with_default(text, default)) for name, default, text in rows])

    def plain_options(self, ctx: Any) -> list[str]:
        """The names of all options except dotted settings."""
        return [name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)]

    def unknown_option(self, name: str, ctx: Any) -> UsageError:
        """An error that suggests the nearest option or setting."""
        settings = [f"--{row[0]}" for row in self.settings.describe(ctx.params)] if self.settings is not None else []
        guess = nearest(name, [option for option in self.plain_options(ctx) if option.startswith("--")] + settings)
        advice = f"did you mean '{guess}'? " if guess else ""
        return UsageError(f"unknown option '{name}'", hint=f"{advice}see {ctx.command_path} --help")


def with_default(text: str, default: str) -> str:
    """A help text with the default value appended, if there is one."""
    return text if default in ("", "None") else f"{text}  [default: {default}]"


def command_with_settings(settings: Settings) -> type[Command]:
    """The class of a command that accepts these dotted settings."""
    return type("CommandWithSettings", (Command,), {"settings": settings})


def split_dotted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into plain ones and dotted settings with their values; everything after `--` is plain."""
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
    """Insert `-` (standard output) after a `--json` that no file name ending in .json follows."""
    completed: list[str] = []
    for index, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument == "--json" and not (following.endswith(".json") or following == STANDARD_OUTPUT):
            completed.append(STANDARD_OUTPUT)
    return completed
