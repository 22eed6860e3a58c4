"""The option `--plot FILE` of commands that plot, with a format by the suffix of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.errors import SaccadeError, UsageError
from saccade.plots.figure import plot_format, valid_suffixes


def check_suffix(path: Path | None) -> Path | None:
    """Raise a usage error if the suffix of a plot names no format."""
    if path is not None:
        try:
            plot_format(path)
        except SaccadeError as error:
            raise UsageError(f"--plot {path}: {error.what}", hint=error.hint) from None
    return path


PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", callback=check_suffix, help=f"Save a plot; the suffix is {valid_suffixes()}."
    ),
]
