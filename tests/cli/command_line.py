"""Types and options for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TINY = (
    *("--model.width", "16", "--model.heads", "2", "--model.feed-forward", "32"),
    *("--model.encoder-layers", "2", "--model.decoder-layers", "2"),
    *("--data.vocabulary", "80", "--data.batch-tokens", "1024"),
)


class CommandResult(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


Saccade = Callable[..., CommandResult]
"""Runs a command in this process: `saccade("translate", run, stdin="…")`."""
