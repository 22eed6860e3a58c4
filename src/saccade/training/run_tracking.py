"""What a run says and keeps: log lines, metrics, curves, samples, a progress bar on a terminal."""

from __future__ import annotations

import csv
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

from saccade.errors import SaccadeError
from saccade.plots.training_curves import plot_curves
from saccade.training.loop import Progress, Update
from saccade.training.run_directory import RunDirectory
from saccade.training.validation import Validation

PLACE = ("step", "epoch", "loss")  # then the objective's sums,
PROGRESS = ("learning_rate", "gradient_norm", "flops")  # then this, then the validation
TIMING = ("step", "seconds", "tokens_per_second")  # apart from the metrics, which no clock may change
PATIENCE = 10.0  # seconds between two lines about a long task where there is no terminal


class Tracker(Protocol):
    """What the loop reports to."""

    def say(self, message: str) -> None:
        """Tell the user something."""
        ...

    def progress(self, what: str, done: int, total: int | None) -> None:
        """How far a long task before training is; `done` equal to `total` ends it."""
        ...

    def positions(self) -> dict[str, int]:
        """How long each file of figures is; a checkpoint keeps this."""
        ...

    def rewind(self, step: int, positions: Mapping[str, int]) -> None:
        """Forget the figures that were written after a checkpoint."""
        ...

    def update(self, update: Update, progress: Progress, share: float | None) -> None:
        """Note one update; `share` of the run is done, if that is known."""
        ...

    def validation(self, step: int, found: Validation) -> None:
        """Note a validation."""
        ...

    def close(self) -> None:
        """Write what is still to be written."""
        ...


class SilentTracker:
    """For the processes that have nothing to say."""

    def say(self, message: str) -> None:
        """Nothing."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Nothing."""

    def positions(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def rewind(self, step: int, positions: Mapping[str, int]) -> None:
        """Nothing."""

    def update(self, update: Update, progress: Progress, share: float | None) -> None:
        """Nothing."""

    def validation(self, step: int, found: Validation) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class RunTracker:
    """Writes into the run directory and speaks on stderr."""

    def __init__(self, directory: RunDirectory, *, sums: Sequence[str], metrics: Sequence[str], log_every: int) -> None:
        """`sums` are what the objective reports, `metrics` the scores of a validation."""
        self.directory = directory
        self.log_every = log_every
        validation = ("valid_loss", "valid_perplexity", *(f"valid_{name}" for name in metrics))
        self.columns = (*PLACE, *sums, *PROGRESS, *validation)
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._log: IO[str] = directory.log.open("a", encoding="utf-8")
        self._speed = Speed()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._tensorboard: Any = None
        self._first_step = 0
        self._said = time.monotonic()

    def say(self, message: str) -> None:
        """One message to the user and to the log."""
        self.console.print(message, markup=False)
        self._note(message)

    def _note(self, message: str) -> None:
        try:
            print(f"{datetime.now():%H:%M:%S} {message}", file=self._log, flush=True)
        except OSError as error:
            raise unwritable(self.directory.log, error) from None

    def progress(self, what: str, done: int, total: int | None) -> None:
        """A bar on a terminal, elsewhere a line now and then."""
        if self.console.is_terminal:
            self._draw_bar(f"{what}  {done:,}", done / total if total else None)
            if done == total:
                self._stop_bar()
        elif time.monotonic() - self._said > PATIENCE:
            self._said = time.monotonic()
            self.say(f"{what}: {done:,}" + (f" of {total:,} ({done / total:.0%})" if total else ""))

    def positions(self) -> dict[str, int]:
        """How long each file of figures is; a checkpoint keeps this."""
        return {path.name: path.stat().st_size for path in self.files() if path.exists()}

    def files(self) -> tuple[Path, Path]:
        """The files of figures."""
        return self.directory.metrics, self.directory.timing

    def rewind(self, step: int, positions: Mapping[str, int]) -> None:
        """Forget the figures that were written after a checkpoint: the resumed run will write them again."""
        self._first_step = step + 1
        for path in self.files():
            written = path.stat().st_size if path.exists() else 0
            kept = positions.get(path.name, 0)
            if written < kept:
                self.say(f"{path}: is shorter than it was at step {step:,}: some of its rows are lost")
            elif written > kept:
                os.truncate(path, kept)

    def update(self, update: Update, progress: Progress, share: float | None) -> None:
        """Move the bar at every update, write a row and (without a terminal) a line every `log_every`."""
        self._speed.add(update.target_tokens)
        progress.recent.append({"loss": update.loss, **update.metrics})
        rate = self._speed.tokens_per_second()
        self._draw_bar(f"step {update.step:,}  loss {update.loss:.3f}  {rate:,.0f} tok/s", share)
        if update.step % self.log_every:
            return
        names = progress.recent[-1]  # one that an update did not report yet is the mean of the others
        means = {name: fmean(one[name] for one in progress.recent if name in one) for name in names}
        progress.recent.clear()
        left = f", {person_time(progress.seconds / share - progress.seconds)} left" if share else ""
        epoch = progress.place.epoch + 1
        line = f"step {update.step:,} epoch {epoch} loss {means['loss']:.4f}, {rate:,.0f} tok/s{left}"
        if self.console.is_terminal:
            self._note(line)
        else:
            self.say(line)
        self._row(
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
        write_row(self.directory.timing, TIMING, timing)
        self._scalars({"step": update.step, "tokens_per_second": rate})

    def validation(self, step: int, found: Validation) -> None:
        """Scores into the metrics, sample outputs into their own file, the curves drawn again."""
        scores = {f"valid_{name}": score.value for name, score in found.scores.items()}
        self._row({"step": step, "valid_loss": found.loss, "valid_perplexity": found.perplexity, **scores})
        lines = [f"source     {s.source}\nreference  {s.reference}\noutput     {s.output}\n" for s in found.samples]
        (self.directory.samples / f"step-{step}.txt").write_text("\n".join(lines), encoding="utf-8")
        self.say(f"step {step:,} validation: {found}")
        for sample in found.samples[:2]:
            self.say(f"  {sample.source}\n    -> {sample.output}")
        self._speed.pause()
        draw_curves(self.directory)

    def close(self) -> None:
        """Stop the bar, draw the last curves, close the files."""
        self._stop_bar()
        draw_curves(self.directory)
        if self._tensorboard:
            self._tensorboard.close()
        self._log.close()

    def _row(self, values: dict[str, Any]) -> None:
        write_row(self.directory.metrics, self.columns, values)
        self._scalars(values)

    def _scalars(self, values: dict[str, Any]) -> None:
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

    def _draw_bar(self, words: str, share: float | None) -> None:
        if not self.console.is_terminal:
            return
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0 if share is not None else None)
        assert self._task is not None
        self._bar.update(self._task, description=words, completed=share or 0.0)


class Speed:
    """Tokens a second over the last updates, pauses left out."""

    def __init__(self, window: int = 50) -> None:
        self._window = window
        self._marks: list[tuple[float, int]] = []
        self._last: float | None = None

    def add(self, tokens: int) -> None:
        """Count the tokens of an update that ended now."""
        now = time.perf_counter()
        if self._last is not None:
            self._marks = [*self._marks[1 - self._window :], (now - self._last, tokens)]
        self._last = now

    def pause(self) -> None:
        """The time until the next update is not training."""
        self._last = None

    def tokens_per_second(self) -> float:
        """The rate, 0 before the second update."""
        seconds = sum(mark[0] for mark in self._marks)
        return sum(mark[1] for mark in self._marks) / seconds if seconds else 0.0


def tensorboard_writer(path: Path, first_step: int) -> Any:
    """A TensorBoard writer that hides older points from `first_step` on; False without the optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(path), purge_step=first_step or None)


def write_row(path: Path, columns: Sequence[str], values: dict[str, Any]) -> None:
    """Append one row to a CSV file, with its header if it is new."""
    try:
        new = not path.exists() or path.stat().st_size == 0
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(values)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> SaccadeError:
    """What to tell when a log cannot be written."""
    return SaccadeError(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        do="make room, then go on: saccade train --resume RUN",
    )


def draw_curves(directory: RunDirectory) -> None:
    """Draw metrics.csv and timing.csv as results.png."""
    rows = [row for path in (directory.metrics, directory.timing) if path.exists() for row in read_rows(path)]
    if rows:
        plot_curves(rows, directory.curves)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; a picture is not worth failing for what somebody else wrote into it."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        try:
            rows = list(csv.DictReader(file))
        except csv.Error:
            return []
    return [{name: cell for name, cell in row.items() if name is not None} for row in rows]


def person_time(seconds: float) -> str:
    """Seconds as 42 s, 3 min or 1 h 05 min."""
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
