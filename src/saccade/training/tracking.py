"""What a run says and keeps: log lines, metrics, curves, samples, a progress bar on a terminal."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from saccade.evaluation.curves import plot_curves
from saccade.training.directory import RunDirectory
from saccade.training.loop import Progress, Update
from saccade.training.validation import Validation

COLUMNS = ("step", "epoch", "loss", "nll", "learning_rate", "gradient_norm", "tokens_per_second", "seconds", "flops")


class Tracker(Protocol):
    """What the loop reports to."""

    def say(self, message: str) -> None:
        """Tell the user something."""
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

    def update(self, update: Update, progress: Progress, share: float | None) -> None:
        """Nothing."""

    def validation(self, step: int, found: Validation) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class RunTracker:
    """Writes into the run directory and speaks on stderr."""

    def __init__(self, directory: RunDirectory, *, metrics: Sequence[str], log_every: int) -> None:
        self.directory = directory
        self.log_every = log_every
        self.columns = [*COLUMNS, "valid_loss", "valid_perplexity", *(f"valid_{name}" for name in metrics)]
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._log: IO[str] = directory.log.open("a", encoding="utf-8")
        self._speed = Speed()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._tensorboard = tensorboard_writer(directory.tensorboard)
        self._window: list[Update] = []

    def say(self, message: str) -> None:
        """One message to the user and to the log."""
        self.console.print(message, markup=False)
        print(f"{datetime.now():%H:%M:%S} {message}", file=self._log, flush=True)

    def update(self, update: Update, progress: Progress, share: float | None) -> None:
        """Move the bar at every update, write a row and (without a terminal) a line every `log_every`."""
        self._speed.add(update.target_tokens)
        self._window.append(update)
        rate = self._speed.tokens_per_second()
        self._move_bar(update, rate, share)
        if update.step % self.log_every:
            return
        means = {name: fmean(one.metrics[name] for one in self._window) for name in update.metrics}
        loss = fmean(one.loss for one in self._window)
        self._window.clear()
        left = f", {person_time(progress.seconds / share - progress.seconds)} left" if share else ""
        line = f"step {update.step:,} epoch {progress.epoch + 1} loss {loss:.4f}, {rate:,.0f} tok/s{left}"
        if self.console.is_terminal:
            print(f"{datetime.now():%H:%M:%S} {line}", file=self._log, flush=True)
        else:
            self.say(line)
        self._row(
            {
                "step": update.step,
                "epoch": progress.epoch + 1,
                "loss": loss,
                **means,
                "learning_rate": update.learning_rate,
                "gradient_norm": update.gradient_norm,
                "tokens_per_second": round(rate, 1),
                "seconds": round(progress.seconds, 1),
                "flops": progress.flops,
            }
        )

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
        if self._bar:
            self._bar.stop()
            self._bar = None
        draw_curves(self.directory)
        if self._tensorboard:
            self._tensorboard.close()
        self._log.close()

    def _row(self, values: dict[str, Any]) -> None:
        write_row(self.directory.metrics, self.columns, values)
        if self._tensorboard:
            for name, value in values.items():
                if name not in ("step", "seconds"):
                    self._tensorboard.add_scalar(name.replace("valid_", "valid/"), value, values["step"])

    def _move_bar(self, update: Update, rate: float, share: float | None) -> None:
        if not self.console.is_terminal:
            return
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0 if share is not None else None)
        assert self._task is not None
        words = f"step {update.step:,}  loss {update.loss:.3f}  {rate:,.0f} tok/s"
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


def tensorboard_writer(path: Path) -> Any:
    """A TensorBoard writer, or None where the optional package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(path))


def write_row(path: Path, columns: Sequence[str], values: dict[str, Any]) -> None:
    """Append one row to a CSV file, with its header if it is new."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerow(values)


def drop_rows_after(path: Path, step: int) -> None:
    """Forget what was logged after a checkpoint: the resumed run will log it again."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *(row for row in rows if row and int(row[0]) <= step)])


def draw_curves(directory: RunDirectory) -> None:
    """Draw metrics.csv as results.png."""
    if directory.metrics.exists():
        with directory.metrics.open(encoding="utf-8", newline="") as file:
            plot_curves(list(csv.DictReader(file)), directory.curves)


def person_time(seconds: float) -> str:
    """Seconds as 42 s, 3 min or 1 h 05 min."""
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
