"""The log files of a run; a file that cannot be written is reported once and does not stop the run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.plots.training_curves import plot_curves
from saccade.training.runs.csv_log import append_bytes, append_row, read_rows
from saccade.training.runs.directory import RunDirectory
from saccade.training.validation import Validation

TIMING_COLUMNS = ("step", "seconds", "tokens_per_second")  # in their own file: metrics.csv does not depend on the clock


class LogFailures:
    """Turns errors of log outputs into one warning per output."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._reported: set[str] = set()

    @contextlib.contextmanager
    def tolerated(self, output: str, kind: type[Exception] = OSError) -> Iterator[None]:
        """Catch errors of a kind and warn about the first one of this output."""
        try:
            yield
        except kind as error:
            if output not in self._reported:
                self._reported.add(output)
                self._warn(f"{output} cannot be written: {describe(error)}; training continues")


def describe(error: Exception) -> str:
    """Describe an error in one line."""
    if isinstance(error, SaccadeError):
        return error.one_line
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


class LogFiles:
    """Writes train.log, metrics.csv, timing.csv, samples and results.png of a run."""

    def __init__(self, directory: RunDirectory, columns: Sequence[str], warn: Callable[[str], None]) -> None:
        self.directory = directory
        self.columns = columns
        self.failures = LogFailures(warn)

    def message(self, text: str) -> None:
        """Append a message with the time to train.log."""
        with self.failures.tolerated("train.log"):
            append_bytes(self.directory.log, f"{datetime.now():%H:%M:%S} {text}\n".encode("utf-8", "replace"))

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Append a row to metrics.csv."""
        with self.failures.tolerated("metrics.csv"):
            append_row(self.directory.metrics, self.columns, values)

    def timing(self, values: Mapping[str, Any]) -> None:
        """Append a row to timing.csv."""
        with self.failures.tolerated("timing.csv"):
            append_row(self.directory.timing, TIMING_COLUMNS, values)

    def samples(self, step: int, validation: Validation) -> None:
        """Write the sample outputs of a validation."""
        lines = [
            f"source     {s.source}\nreference  {s.reference}\noutput     {s.output}\n" for s in validation.samples
        ]
        with self.failures.tolerated("samples/"):
            (self.directory.samples / f"step-{step}.txt").write_text("\n".join(lines), encoding="utf-8")

    def curves(self) -> None:
        """Plot metrics.csv and timing.csv as results.png."""
        with self.failures.tolerated("results.png", Exception):  # whatever the plotting library raises
            rows = [row for path in self.csv_files() if path.is_file() for row in read_rows(path)]
            if rows:
                plot_curves(rows, self.directory.curves)

    def csv_files(self) -> tuple[Path, Path]:
        """Return the paths of the CSV files."""
        return self.directory.metrics, self.directory.timing

    def csv_sizes(self) -> dict[str, int]:
        """Return the size of each CSV file in bytes; saved in a checkpoint."""
        return {path.name: path.stat().st_size for path in self.csv_files() if path.is_file()}

    def truncate(self, sizes: Mapping[str, int]) -> list[Path]:
        """Truncate the CSV files to their sizes at a checkpoint; return the files that are shorter."""
        shorter: list[Path] = []
        for path in self.csv_files():
            written = path.stat().st_size if path.is_file() else 0
            kept = sizes.get(path.name, 0)
            if written < kept:
                shorter.append(path)
            elif written > kept:
                with self.failures.tolerated(path.name):
                    os.truncate(path, kept)
        return shorter
