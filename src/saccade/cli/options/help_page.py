"""Layout of `--help` and `--help-all`: arguments, the most common options, then all others by group."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.cli.options.flags import FLAG_HELP

if TYPE_CHECKING:
    from saccade.config_help import SettingHelp

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
MORE = "More options"
INDENT = "  "
MAX_USAGE_WIDTH = 30  # a longer option has its text on the next line


class SettingsHelp(NamedTuple):
    """The help on the dotted settings of a command."""

    settings: list[SettingHelp]
    defaults: str = ""  # sentence that says whose defaults are shown


@dataclass(frozen=True)
class HelpPage:
    """What the help of a command shows, and in which order."""

    describe: Callable[[Any], SettingsHelp] | None = None
    """Describes the dotted settings of the command; its argument is the typer context with the parsed options."""
    common: tuple[str, ...] = ()
    """Options and settings that `--help` shows, in this order; without them it shows all plain options."""
    rest: str = ""
    """What `--help-all` shows in addition."""
    shortcuts: Mapping[str, str] = field(default_factory=dict)
    """Plain options that set a dotted setting: `--beam` sets `decoding.beam`."""


PLAIN_PAGE = HelpPage()
"""Help of a command without settings: all its options."""


class Entry(NamedTuple):
    """One option in the help."""

    usage: str  # "--beam <int>"
    text: str
    group: str = MORE

    @property
    def row(self) -> tuple[str, str]:
        """The entry as a row of the definition list."""
        return self.usage, self.text


def write_options(page: HelpPage, parameters: list[Any], context: Any, formatter: Any, *, everything: bool) -> None:
    """Write the sections of arguments and options."""
    found = SettingsHelp([]) if page.describe is None else page.describe(context)
    arguments = [parameter.get_help_record(context) for parameter in parameters if is_argument(parameter)]
    entries = option_entries(page, parameters, context, found.settings)
    help_entry = entries.pop(HELP[-1])
    common = [entries.pop(name) for name in page.common] if page.common else list(entries.values())
    flags = [Entry(*row) for row in FLAG_HELP]
    rest = [*entries.values(), *flags] if page.common else []
    common += [help_entry, Entry(HELP_ALL, page.rest)] if rest else [*flags, help_entry]
    if arguments:
        write_section(formatter, "Arguments", arguments)
    write_section(formatter, "Options", [entry.row for entry in common])
    if found.defaults:
        formatter.write(f"\n{wrap(found.defaults, formatter.width, INDENT)}\n")
    if not everything:
        return
    # A group of its own (mixture of experts, minimum risk) follows the settings of model, data, training and decoding.
    plain = [MORE, *(section_title(setting.name) for setting in found.settings)]
    groups = dict.fromkeys([*plain, *(entry.group for entry in rest)])
    for group in groups:
        rows = [entry.row for entry in rest if entry.group == group]
        if rows:
            write_section(formatter, group, rows)


def write_section(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Write a definition list; unlike that of the formatter, it never breaks a name at a hyphen."""
    column = min(max(len(usage) for usage, _ in rows), MAX_USAGE_WIDTH) + 2 * len(INDENT)
    formatter.write(f"\n{title}:\n")
    for usage, text in rows:
        lines = wrap(text, formatter.width, " " * column)
        fits = len(usage) <= column - 2 * len(INDENT)
        first = f"{INDENT}{usage}"
        formatter.write(f"{first.ljust(column)}{lines.lstrip()}\n" if fits else f"{first}\n{lines}\n")


def wrap(text: str, width: int, indent: str) -> str:
    """Return a text in lines of at most this width."""
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def option_entries(
    page: HelpPage, parameters: list[Any], context: Any, settings: list[SettingHelp]
) -> dict[str, Entry]:
    """Return every plain option and every setting without one, by name."""
    by_name = {setting.name: setting for setting in settings}
    entries: dict[str, Entry] = {}
    for parameter in parameters:
        if is_argument(parameter) or parameter.hidden:
            continue
        usage, text = parameter.get_help_record(context)
        name = long_name(parameter)
        setting = by_name.get(page.shortcuts.get(name, ""))
        if setting is not None and not parameter.is_flag:
            text = f"{text}  {setting.remarks}".rstrip()
        entries[name] = Entry(usage.replace(" range>", ">"), text)
    hidden = set(page.shortcuts.values())
    for setting in settings:
        if setting.name not in hidden:
            usage = f"--{setting.name} <{setting.type}>" if setting.type else f"--{setting.name}"
            text = f"{setting.text}  {setting.remarks}".rstrip()
            entries[f"--{setting.name}"] = Entry(usage, text, setting.group or section_title(setting.name))
    return entries


def is_argument(parameter: Any) -> bool:
    """Return whether a parameter is a positional argument."""
    return bool(parameter.param_type_name == "argument")


def long_name(parameter: Any) -> str:
    """Return the long form of an option: `--help` of `-h, --help`."""
    return str(max(parameter.opts, key=len))


def section_title(name: str) -> str:
    """Return the title of the section of a dotted setting."""
    return f"{name.partition('.')[0].capitalize()} settings"
