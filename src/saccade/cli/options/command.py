"""The class of every command: strict option parsing, dotted settings such as `--model.dropout`, and `--json [FILE]`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from saccade.cli.options.flags import FLAGS
from saccade.cli.options.help_page import HELP, HELP_ALL, PLAIN_PAGE, HelpPage, is_argument, write_options
from saccade.cli.output.errors import parser_message
from saccade.cli.output.json_output import STANDARD_OUTPUT
from saccade.errors import SaccadeError, UsageError, nearest
from saccade.toolkit_aliases import ARGUMENTS, candidates_for, normalized, options_for_alias

PATHS = (Path, list[Path])  # annotations of options that are paths
SETTINGS = "saccade.settings"  # key of the unparsed dotted settings in a typer context
EVERYTHING = "saccade.help-all"  # key that says whether --help-all was given


class Command(TyperCommand):
    """A command that answers an unknown option with the nearest valid one."""

    page: ClassVar[HelpPage] = PLAIN_PAGE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remove the dotted settings, which may appear anywhere, and let typer parse the other arguments."""
        args, requests = split_help(args)
        dotted: list[str] = []
        if self.page.describe is not None:
            args, dotted = split_dotted(args)
        if any("--json" in parameter.opts for parameter in self.params):
            args = complete_json(args)
        ctx.meta[SETTINGS] = dotted
        self.check_paths(args)
        for parameter in self.path_parameters():
            parameter.type_descriptor.parameter_info.readable = False  # opening the file gives a better error
        if requests:
            self.print_help(ctx, args, everything=HELP_ALL in requests)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            raise self.usage_error(error, ctx) from None

    def path_parameters(self) -> list[Any]:
        """Return the arguments and options that are paths."""
        return [
            parameter
            for parameter in self.params
            if getattr(getattr(parameter, "type_descriptor", None), "annotation", None) in PATHS
        ]

    def check_paths(self, args: Sequence[str]) -> None:
        """Raise an error for an option whose path is empty, because it would name the current directory."""
        options = {name for parameter in self.path_parameters() for name in parameter.opts}
        for before, argument in pairwise(("", *args)):
            name, equals, value = argument.partition("=")
            empty = before if before in options and not argument else name if equals and not value else None
            if empty in options:
                raise UsageError(f"{empty} is empty", hint="name a path; perhaps a variable of the shell is not set")

    def print_help(self, ctx: Any, args: list[str], *, everything: bool) -> None:
        """Print the help with the defaults that the other arguments imply, and exit; ignore incomplete arguments."""
        ctx.resilient_parsing = True
        super().parse_args(ctx, args)
        ctx.meta[EVERYTHING] = everything
        print(self.get_help(ctx))
        raise typer.Exit

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, the most common ones first."""
        everything = ctx.meta.get(EVERYTHING, False)
        write_options(self.page, self.get_params(ctx), ctx, formatter, everything=everything)

    def plain_options(self, ctx: Any) -> list[str]:
        """Return the names of all options except dotted settings."""
        names = [name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)]
        return [*names, HELP_ALL]

    def settings(self, ctx: Any) -> list[str]:
        """Return the names of all dotted settings as options."""
        if self.page.describe is None:
            return []
        try:
            return [f"--{setting.name}" for setting in self.page.describe(ctx).settings]
        except SaccadeError:  # another argument is wrong too
            return []

    def usage_error(self, error: Any, ctx: Any) -> UsageError:
        """Return the error of the option parser as ours, with advice."""
        advice = f"see {ctx.command_path} --help"
        name = getattr(error, "option_name", None)
        if name is not None and name not in self.plain_options(ctx):
            return self.unknown_option(name, ctx)
        choices = getattr(getattr(getattr(error, "param", None), "type_descriptor", None), "choices", None)
        if choices:
            value = str(error).partition("'")[2].partition("'")[0]
            guess = nearest(value, [str(choice) for choice in choices])
            advice = f"did you mean '{guess}'? {advice}" if guess else advice
        return UsageError(parser_message(error), hint=advice)

    def unknown_option(self, name: str, ctx: Any) -> UsageError:
        """Return an error that suggests the option or argument that other toolkits call so, else the nearest option."""
        names = [*self.plain_options(ctx), *FLAGS, *self.settings(ctx)]
        options = [option for option in names if option.startswith("--")]
        argument = ARGUMENTS.get(normalized(name))
        candidates = candidates_for(name)
        if "--model.FIELD" in options:  # any field that all compared models have
            options += [f"--{candidate}" for candidate in candidates if candidate.startswith("model.")]
        advice = ""
        if argument in {parameter.metavar for parameter in self.params if is_argument(parameter)}:
            advice = f"name it without an option, as {argument}; "
        elif aliased := options_for_alias(name, options):
            listed = "' or '".join(aliased)
            advice = f"did you mean '{listed}'? "
        elif candidates:  # similar spelling would only mislead
            advice = f"--{candidates[0]} is an option of saccade train; " if "." in candidates[0] else ""
        elif guess := nearest(name, options):
            advice = f"did you mean '{guess}'? "
        return UsageError(f"unknown option '{name}'", hint=f"{advice}see {ctx.command_path} {self.help_option}")

    @property
    def help_option(self) -> str:
        """The option that shows all options of this command."""
        return HELP_ALL if self.page.common else HELP[-1]


def command_class(page: HelpPage) -> type[Command]:
    """Return the class of a command with this help; with described settings, it accepts them as options."""
    return type("CommandWithPage", (Command,), {"page": page})


def split_help(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """Split arguments into those without requests for help, and these; everything after `--` is plain."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    requests = {argument for argument in arguments[:end] if argument in (*HELP, HELP_ALL)}
    return [*(argument for argument in arguments[:end] if argument not in requests), *arguments[end:]], requests


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
