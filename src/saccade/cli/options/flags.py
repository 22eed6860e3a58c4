"""Flags that every command accepts, before and after its name."""

from __future__ import annotations

from collections.abc import Sequence

FLAGS = {
    "--debug": "Show the traceback of an error.",
    "--quiet": "Show only warnings and errors.",
    "-q": "Show only warnings and errors.",
    "--verbose": "Show details.",
    "-v": "Show details.",
}
"""Help text of each flag."""

FLAG_HELP = (
    ("-q, --quiet", FLAGS["--quiet"]),
    ("-v, --verbose", FLAGS["--verbose"]),
    ("--debug", FLAGS["--debug"]),
)
"""The flags as the help of a command lists them."""


def split_flags(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the arguments without the flags before a `--`, and these flags."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words = [argument for argument in arguments[:end] if argument not in FLAGS]
    return [*words, *arguments[end:]], FLAGS.keys() & set(arguments[:end])
