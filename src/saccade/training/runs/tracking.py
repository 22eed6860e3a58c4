"""Logging of a run: messages, metrics, plots, sample outputs, a progress bar on a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from saccade.plots.training_curves import plot_curves
from saccade.training.loop import Progress, Update
from saccade.training.runs.csv_log import read_rows, unwritable, write_row
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.throughput import Throughput
from saccade.training.units import format_duration
from saccade.training.validation import Validation

# Columns of metrics.csv: the first three, the metrics of the objective, the next three, the validation scores.
STEP_COLUMNS = ("step", "epoch", "loss")
UPDATE_COLUMNS = ("learning_rate", "gradient_norm", "flops")
TIMING_COLUMNS = ("step", "seconds", "tokens_per_second")  # in their own file: metrics.csv does not depend on the clock
PROGRESS_INTERVAL = 10.0  # seconds between two progress lines of a long task without a terminal


class Tracker(Protocol):
    """Interface through which a run reports messages, updates and validations."""

    def log(self, message: str) -> None:
        """Show a message to the user."""
        ...

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Report progress of a long task before training; it ends when `done` equals `total`."""
        ...

    def file_sizes(self) -> dict[str, int]:
        """Return the size of each CSV file in bytes; saved in a checkpoint."""
        ...

    def rewind(self, step: int, file_sizes: Mapping[str, int]) -> None:
        """Drop the CSV rows that were written after a checkpoint."""
        ...

    def update(self, update: Update, progress: Progress, fraction: float | None) -> None:
        """Record one update; `fraction` of the run is done, None if unknown."""
        ...

    def validation(self, step: int, validation: Validation) -> None:
        """Record a validation."""
        ...

    def close(self) -> None:
        """Draw the last plot and close the files."""
        ...


class NullTracker:
    """Tracker of the processes other than rank 0: ignores everything."""

    def log(self, message: str) -> None:
        """Do nothing."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Do nothing."""

    def file_sizes(self) -> dict[str, int]:
        """Return no sizes."""
        return {}

    def rewind(self, step: int, file_sizes: Mapping[str, int]) -> None:
        """Do nothing."""

    def update(self, update: Update, progress: Progress, fraction: float | None) -> None:
        """Do nothing."""

    def validation(self, step: int, validation: Validation) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class RunTracker:
    """Writes log, metrics and plots into the run directory, and messages to stderr."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        objective_metrics: Sequence[str],
        validation_metrics: Sequence[str],
        log_every: int,
    ) -> None:
        self.directory = directory
        self.log_every = log_every
        validation = ("valid_loss", "valid_perplexity", *(f"valid_{name}" for name in validation_metrics))
        self.columns = (*STEP_COLUMNS, *objective_metrics, *UPDATE_COLUMNS, *validation)
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._log: IO[str] = directory.log.open("a", encoding="utf-8")
        self._throughput = Throughput()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._tensorboard: Any = None
        self._first_step = 0
        self._last_progress = time.monotonic()

    def log(self, message: str) -> None:
        """Print a message and write it to the log file."""
        self.console.print(message, markup=False)
        self._write_log(message)

    def _write_log(self, message: str) -> None:
        try:
            print(f"{datetime.now():%H:%M:%S} {message}", file=self._log, flush=True)
        except OSError as error:
            raise unwritable(self.directory.log, error) from None

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Draw a progress bar on a terminal; elsewhere log a line every `PROGRESS_INTERVAL` seconds."""
        if self.console.is_terminal:
            self._draw_bar(f"{what}  {done:,}", done / total if total else None)
            if done == total:
                self._stop_bar()
        elif time.monotonic() - self._last_progress > PROGRESS_INTERVAL:
            self._last_progress = time.monotonic()
            self.log(f"{what}: {done:,}" + (f" of {total:,} ({done / total:.0%})" if total else ""))

    def file_sizes(self) -> dict[str, int]:
        """Return the size of each CSV file in bytes; saved in a checkpoint."""
        return {path.name: path.stat().st_size for path in self.files() if path.exists()}

    def files(self) -> tuple[Path, Path]:
        """Return the CSV files."""
        return self.directory.metrics, self.directory.timing

    def rewind(self, step: int, file_sizes: Mapping[str, int]) -> None:
        """Truncate the CSV files to their size at a checkpoint: the resumed run writes the later rows again."""
        self._first_step = step + 1
        for path in self.files():
            written = path.stat().st_size if path.exists() else 0
            kept = file_sizes.get(path.name, 0)
            if written < kept:
                self.log(f"{path}: is shorter than at step {step:,}: some of its rows are lost")
            elif written > kept:
                os.truncate(path, kept)

    def update(self, update: Update, progress: Progress, fraction: float | None) -> None:
        """Move the bar at every update; every `log_every` updates write a CSV row and a log line."""
        self._throughput.add(update.target_tokens)
        progress.recent.append({"loss": update.loss, **update.metrics})
        rate = self._throughput.tokens_per_second()
        self._draw_bar(f"step {update.step:,}  loss {update.loss:.3f}  {rate:,.0f} tok/s", fraction)
        if update.step % self.log_every:
            return
        names = progress.recent[-1]  # a metric may begin within the interval
        means = {name: fmean(one[name] for one in progress.recent if name in one) for name in names}
        progress.recent.clear()
        left = f", {format_duration(progress.seconds / fraction - progress.seconds)} left" if fraction else ""
        epoch = progress.position.epoch + 1
        line = f"step {update.step:,} epoch {epoch} loss {means['loss']:.4f}, {rate:,.0f} tok/s{left}"
        if self.console.is_terminal:
            self._write_log(line)
        else:
            self.log(line)
        self._write_metrics(
            {
                "step": update.step,
                "epoch": epoch,
                **means,
                "learning_rate": update.learning_rate,
                "gradient_norm": update.gradient_norm,
                "flops": progress.flops,
            }
        )
        timing = {"step": update.step, "seconds": round(progress.seconds, 1), "tokens_per_second": round(rate, 1)}
        write_row(self.directory.timing, TIMING_COLUMNS, timing)
        self._write_tensorboard({"step": update.step, "tokens_per_second": rate})

    def validation(self, step: int, validation: Validation) -> None:
        """Write scores and sample outputs, and draw the plot again."""
        scores = {f"valid_{name}": score.value for name, score in validation.scores.items()}
        losses = {"valid_loss": validation.loss, "valid_perplexity": validation.perplexity}
        self._write_metrics({"step": step, **losses, **scores})
        lines = [
            f"source     {s.source}\nreference  {s.reference}\noutput     {s.output}\n" for s in validation.samples
        ]
        (self.directory.samples / f"step-{step}.txt").write_text("\n".join(lines), encoding="utf-8")
        self.log(f"step {step:,} validation: {validation}")
        for sample in validation.samples[:2]:
            self.log(f"  {sample.source}\n    -> {sample.output}")
        self._throughput.pause()
        draw_curves(self.directory)

    def close(self) -> None:
        """Stop the bar, draw the last plot, close the files."""
        self._stop_bar()
        draw_curves(self.directory)
        if self._tensorboard:
            self._tensorboard.close()
        self._log.close()

    def _write_metrics(self, values: dict[str, Any]) -> None:
        write_row(self.directory.metrics, self.columns, values)
        self._write_tensorboard(values)

    def _write_tensorboard(self, values: dict[str, Any]) -> None:
        if self._tensorboard is None:
            self._tensorboard = tensorboard_writer(self.directory.tensorboard, self._first_step)
        if self._tensorboard:
            for name, value in values.items():
                if name != "step":
                    self._tensorboard.add_scalar(name.replace("valid_", "valid/"), value, values["step"])

    def _stop_bar(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _draw_bar(self, description: str, fraction: float | None) -> None:
        if not self.console.is_terminal:
            return
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0 if fraction is not None else None)
        assert self._task is not None
        self._bar.update(self._task, description=description, completed=fraction or 0.0)


def tensorboard_writer(path: Path, first_step: int) -> Any:
    """Open a TensorBoard writer that hides older points from `first_step` on; False without the optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(path), purge_step=first_step or None)


def draw_curves(directory: RunDirectory) -> None:
    """Plot metrics.csv and timing.csv as results.png."""
    rows = [row for path in (directory.metrics, directory.timing) if path.exists() for row in read_rows(path)]
    if rows:
        plot_curves(rows, directory.curves)
