"""The `saccade` program: its commands and exit codes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from typer.main import get_command

from saccade import messages
from saccade.cli.attention import ATTENTION_PAGE, attention
from saccade.cli.average import average
from saccade.cli.check import CHECK_PAGE, check
from saccade.cli.compare import COMPARE_PAGE, compare
from saccade.cli.complexity import complexity
from saccade.cli.demo import demo
from saccade.cli.evaluate import EVALUATE_PAGE, evaluate
from saccade.cli.export import export
from saccade.cli.import_model import import_model
from saccade.cli.info import info
from saccade.cli.interruption import exit_if_busy, interruptible_imports
from saccade.cli.lexicon import lexicon
from saccade.cli.models import models
from saccade.cli.options.command import command_class
from saccade.cli.options.flags import FLAGS, split_flags
from saccade.cli.options.help_page import HELP_ALL, PLAIN_PAGE, HelpPage
from saccade.cli.options.option_group import expand_option_groups
from saccade.cli.output.errors import report
from saccade.cli.output.standard_streams import open_closed_streams
from saccade.cli.train import TRAIN_PAGE, train
from saccade.cli.translate import TRANSLATE_PAGE, translate
from saccade.cli.verify import verify
from saccade.errors import UsageError
from saccade.version import __version__

ANYWHERE = "Valid before and after the command."

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # importing rich would double the time of --help
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def add(function: Callable[..., None], page: HelpPage = PLAIN_PAGE, *, name: str | None = None) -> None:
    """Register a command, by default under the name of its function."""
    app.command(name, cls=command_class(page))(expand_option_groups(function))


add(train, TRAIN_PAGE)
add(check, CHECK_PAGE)
add(translate, TRANSLATE_PAGE)
add(evaluate, EVALUATE_PAGE)
add(compare, COMPARE_PAGE)
add(attention, ATTENTION_PAGE)
add(average)
add(export)
add(import_model, name="import")
add(lexicon)
add(models)
add(info)
add(verify)
add(complexity)
add(demo)


def print_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        print(f"saccade {__version__}")
        raise typer.Exit


@app.callback()
def saccade(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=f"{FLAGS['--quiet']} {ANYWHERE}")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=f"{FLAGS['--verbose']} {ANYWHERE}")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=f"{FLAGS['--debug']} {ANYWHERE}")] = False,
) -> None:
    """Train, run and explain attention models that translate text.

    First steps: `saccade demo`, then `saccade train --help`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for bad input, 2 for wrong usage, 128 + n after signal n."""
    words, flags = split_flags(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in flags
    try:
        messages.set_level(level_of(flags))
        open_closed_streams()
        write_utf8()
        try:
            with interruptible_imports():
                run(["--help"] if words in ([], [HELP_ALL]) else words)
        finally:
            sys.stdout.flush()  # raises here on a full disk or a closed pipe, rather than at interpreter exit
    except typer.Exit as exit_request:
        return exit_request.exit_code
    except KeyboardInterrupt as error:
        code = report(error, debug=debug)
        exit_if_busy(code)
        return code
    except Exception as error:
        return report(error, debug=debug)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by tokenizers; it derives from BaseException
            raise
        return report(error, debug=debug)
    return 0


def run(words: Sequence[str]) -> None:
    """Parse and run a command; errors are raised, so that typer does not print its own boxes."""
    command = get_command(app)
    with command.make_context("saccade", list(words)) as context:
        command.invoke(context)


def level_of(flags: set[str]) -> messages.Level:
    """Return the message level that --quiet and --verbose select."""
    quiet, verbose = bool(flags & {"--quiet", "-q"}), bool(flags & {"--verbose", "-v"})
    if quiet and verbose:
        raise UsageError("--quiet and --verbose contradict each other", hint="give one of the two")
    if quiet:
        return messages.Level.QUIET
    return messages.Level.VERBOSE if verbose else messages.Level.NORMAL


def write_utf8() -> None:
    """Write UTF-8 regardless of the locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
