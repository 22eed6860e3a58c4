"""Logging of a run: messages, metrics, plots, sample outputs, a progress bar on a terminal."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

from saccade import messages
from saccade.data.audit.report import Severity
from saccade.training.config import TrackerName
from saccade.training.loop import Progress, Update
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.experiment_trackers import RunStatus, TensorBoard, open_tracker
from saccade.training.runs.log_files import LogFiles
from saccade.training.runs.metric_streams import MetricStream
from saccade.training.runs.throughput import Throughput
from saccade.training.runs.training_bar import TrainingBar
from saccade.training.units import format_duration
from saccade.training.validation import Validation

# Columns of metrics.csv: the first three, the metrics of the objective, the next three, the validation scores.
STEP_COLUMNS = ("step", "epoch", "loss")
UPDATE_COLUMNS = ("learning_rate", "gradient_norm", "flops")
LOG_INTERVALS = ((10, 1), (50, 5), (100, 10), (250, 25))  # (up to this step, updates between two log lines)
LOG_INTERVAL = 50  # after these steps
TENSORBOARD = "tb/"  # name in warnings
PROGRESS_INTERVAL = 10.0  # seconds between two progress lines of a long task without a terminal


class Tracker(Protocol):
    """Interface through which a run reports messages, updates and validations."""

    def log(self, message: str) -> None:
        """Show a message to the user."""
        ...

    def warn(self, message: str, severity: Severity = "warning") -> None:
        """Show a warning, or an error that does not stop the run."""
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

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Open the experiment trackers; `settings` are those of the run."""
        ...

    def close(self, status: RunStatus) -> None:
        """Draw the last plot and close the experiment trackers."""
        ...


class NullTracker:
    """Tracker of the processes other than rank 0: ignores everything."""

    def log(self, message: str) -> None:
        """Do nothing."""

    def warn(self, message: str, severity: Severity = "warning") -> None:
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

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self, status: RunStatus) -> None:
        """Do nothing."""


class RunTracker:
    """Writes log, metrics and plots into the run directory, and messages to stderr.

    An output that cannot be written never stops the run: the first failure is reported, and training continues.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        objective_metrics: Sequence[str],
        validation_metrics: Sequence[str],
        log_every: int | None,
        log_to: Sequence[TrackerName] = (),
    ) -> None:
        """`log_every` is the number of updates between two log lines; None logs the first updates more often."""
        self.directory = directory
        self.log_every = log_every
        validation = ("valid_loss", "valid_perplexity", *(f"valid_{name}" for name in validation_metrics))
        columns = (*STEP_COLUMNS, *objective_metrics, *UPDATE_COLUMNS, *validation)
        self._files = LogFiles(directory, columns, self.warn)
        self._throughput = Throughput()
        self._bar = TrainingBar()
        self._log_to = tuple(dict.fromkeys(log_to))
        self._streams: list[MetricStream] = []
        self._first_step = 0
        self._last_progress = time.monotonic()

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Open the experiment trackers: those of `log_to`, and TensorBoard if it is installed."""
        failures, directory = self._files.failures, self.directory
        if importlib.util.find_spec("tensorboard") is not None:
            with failures.tolerated(TENSORBOARD, Exception):  # whatever the optional package raises
                tensorboard = TensorBoard(directory.tensorboard, self._first_step)
                self._streams.append(MetricStream(TENSORBOARD, tensorboard, failures))
        for name in self._log_to:
            with failures.tolerated(name, Exception):
                tracker = open_tracker(name, directory.path, directory.trackers, settings)
                self._streams.append(MetricStream(name, tracker, failures))

    def log(self, message: str) -> None:
        """Print a message, unless --quiet hides it, and write it to the log file."""
        messages.note(message)
        self._files.message(message)

    def warn(self, message: str, severity: Severity = "warning") -> None:
        """Print a warning and write it to the log file."""
        messages.warn(f"{severity}: {message}")
        self._files.message(f"{severity}: {message}")

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Draw a progress bar on a terminal; elsewhere log a line every `PROGRESS_INTERVAL` seconds."""
        if messages.shows_progress():
            self._bar.draw(f"{what}  {done:,}", done / total if total else None)
            if done == total:
                self._bar.stop()
        elif time.monotonic() - self._last_progress > PROGRESS_INTERVAL:
            self._last_progress = time.monotonic()
            self.log(f"{what}: {done:,}" + (f" of {total:,} ({done / total:.0%})" if total else ""))

    def file_sizes(self) -> dict[str, int]:
        """Return the size of each CSV file in bytes; saved in a checkpoint."""
        return self._files.csv_sizes()

    def rewind(self, step: int, file_sizes: Mapping[str, int]) -> None:
        """Truncate the CSV files to their size at a checkpoint: the resumed run writes the later rows again."""
        self._first_step = step + 1
        for path in self._files.truncate(file_sizes):
            self.warn(f"{path}: is shorter than at step {step:,}: some of its rows are lost")

    def update(self, update: Update, progress: Progress, fraction: float | None) -> None:
        """Move the bar at every update; write a CSV row and a log line at the steps that are logged."""
        self._throughput.add(update.target_tokens)
        progress.recent.append({"loss": update.loss, **update.metrics})
        rate = self._throughput.tokens_per_second()
        self._bar.draw(f"step {update.step:,}  loss {update.loss:.3f}  {rate:,.0f} tok/s", fraction)
        if update.step % (self.log_every or log_interval(update.step)):
            return
        names = progress.recent[-1]  # a metric may begin within the interval
        means = {name: fmean(one[name] for one in progress.recent if name in one) for name in names}
        progress.recent.clear()
        left = f", {format_duration(progress.seconds / fraction - progress.seconds)} left" if fraction else ""
        epoch = progress.position.epoch + 1
        line = f"step {update.step:,} epoch {epoch} loss {means['loss']:.4f}, {rate:,.0f} tok/s{left}"
        if not messages.shows_progress():  # the bar shows the same
            messages.note(line)
        self._files.message(line)
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
        self._files.timing(timing)
        self._send({"step": update.step, "tokens_per_second": rate})

    def validation(self, step: int, validation: Validation) -> None:
        """Write scores and sample outputs, and draw the plot again."""
        scores = {f"valid_{name}": score.value for name, score in validation.scores.items()}
        losses = {"valid_loss": validation.loss, "valid_perplexity": validation.perplexity}
        self._write_metrics({"step": step, **losses, **scores})
        self._files.samples(step, validation)
        self.log(f"step {step:,} validation: {validation}")
        for sample in validation.samples[:2]:
            self.log(f"  {sample.source}\n    -> {sample.output}")
        self._throughput.pause()
        self._files.curves()

    def close(self, status: RunStatus) -> None:
        """Stop the bar, draw the last plot, and close the experiment trackers."""
        self._bar.stop()
        self._files.curves()
        for stream in self._streams:
            stream.close(status)
        self._streams.clear()

    def _write_metrics(self, values: dict[str, Any]) -> None:
        self._files.metrics(values)
        self._send(values)

    def _send(self, values: dict[str, Any]) -> None:
        metrics = {name.replace("valid_", "valid/"): value for name, value in values.items() if name != "step"}
        for stream in self._streams:
            stream.log(values["step"], metrics)


def log_interval(step: int) -> int:
    """Return the updates between two log lines at a step: even a run of a few updates has ten points in its curves."""
    return next((interval for last, interval in LOG_INTERVALS if step <= last), LOG_INTERVAL)
