"""The command `saccade`: its verbs, and what it answers to the shell."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from saccade.cli.attention import attention
from saccade.cli.average import average
from saccade.cli.check import check
from saccade.cli.command import Verb, verb_with_settings
from saccade.cli.compare import COMPARED, compare
from saccade.cli.complexity import complexity
from saccade.cli.demo import demo
from saccade.cli.errors import report
from saccade.cli.evaluate import evaluate
from saccade.cli.export import export
from saccade.cli.import_model import import_model
from saccade.cli.info import info
from saccade.cli.lexicon import lexicon
from saccade.cli.models import models
from saccade.cli.settings import DECODING, RUN
from saccade.cli.train import train
from saccade.cli.translate import translate
from saccade.cli.verify import verify
from saccade.version import __version__

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # rich alone would take half of the time that --help may take
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command(cls=verb_with_settings(RUN))(train)
app.command(cls=verb_with_settings(RUN))(check)
app.command(cls=verb_with_settings(DECODING))(translate)
app.command(cls=verb_with_settings(DECODING))(evaluate)
app.command(cls=verb_with_settings(COMPARED))(compare)
app.command(cls=verb_with_settings(DECODING))(attention)
app.command(cls=Verb)(average)
app.command(cls=Verb)(export)
app.command("import", cls=Verb)(import_model)
app.command(cls=Verb)(lexicon)
app.command(cls=Verb)(models)
app.command(cls=Verb)(info)
app.command(cls=Verb)(verify)
app.command(cls=Verb)(complexity)
app.command(cls=Verb)(demo)


def print_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        print(f"saccade {__version__}")
        raise typer.Exit


@app.callback()
def saccade(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works before and after the command.")
    ] = False,
) -> None:
    """Train, run and explain attention models: a file of pairs goes in, a model that translates raw text comes out.

    First steps: `saccade demo`, then `saccade train --help`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for faulty input, 2 for faulty usage, 128 + n after signal n."""
    words, debug = without_debug(sys.argv[1:] if arguments is None else arguments)
    try:
        write_utf8()
        try:
            run(words or ["--help"])
        finally:
            sys.stdout.flush()  # a full disk or a closed pipe must show here, not after the interpreter's last line
    except typer.Exit as leave:
        return leave.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug=debug)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the tokenizers' library, which does not make it an Exception
            raise
        return report(error, debug=debug)
    return 0


def run(words: Sequence[str]) -> None:
    """Parse and call, without typer's own error boxes and exit codes."""
    command = get_command(app)
    with command.make_context("saccade", list(words)) as context:
        command.invoke(context)


def without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, wherever it stands before a `--`, and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*options, *arguments[end:]], len(options) < end


def write_utf8() -> None:
    """Input is UTF-8 whatever the locale, so output is too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
