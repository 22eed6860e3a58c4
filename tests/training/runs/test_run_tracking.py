from __future__ import annotations

import csv
import errno
import io
import os
import subprocess
import sys

import pytest

from saccade import messages
from saccade.evaluation.metrics import Score
from saccade.training.loop import Progress, Update
from saccade.training.runs import throughput
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.throughput import Throughput
from saccade.training.runs.tracking import RunTracker, log_interval
from saccade.training.units import format_duration
from saccade.training.validation import Sample, Validation


def update(step: int, loss: float) -> Update:
    figures = {"gradient_norm": 1.0, "learning_rate": 1e-3, "source_tokens": 90, "target_tokens": 100, "passes": 1}
    return Update(step, loss, {"nll": loss / 2}, **figures)


def validation(score: float) -> Validation:
    return Validation(1.5, 4.48, {"bleu": Score("BLEU", score, None, True)}, (Sample("ein", "one", "two"),))


def read_rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def directory(tmp_path):
    found = RunDirectory(tmp_path)
    found.samples.mkdir()
    return found


def run_tracker(directory: RunDirectory) -> None:
    tracker = RunTracker(directory, objective_metrics=["nll"], validation_metrics=["bleu"], log_every=2)
    tracker.begin({})
    progress = Progress()
    for step in range(1, 7):
        progress.step, progress.seconds = step, 10.0 * step
        tracker.update(update(step, 6.0 / step), progress, step / 12)
        if step == 4:
            tracker.validation(step, validation(12.5))
    tracker.close("finished")


def test_plain_lines_without_a_terminal(directory, capsys):
    run_tracker(directory)
    text = capsys.readouterr().err
    lines = text.splitlines()
    assert lines[0].startswith("step 2 epoch 1 loss 4.5000")  # the mean of 6 and 3
    assert lines[0].endswith("2 min left")
    assert "step 4 validation: loss 1.5000, perplexity 4.48, bleu 12.50" in text
    assert "\x1b" not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_on_a_terminal(directory, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "100")
    run_tracker(directory)
    text = screen.getvalue()
    assert "loss 1.000" in text
    assert "tok/s" in text
    assert "━" in text
    assert "step 4 validation" in text
    assert "step 2 epoch 1" in directory.log.read_text(encoding="utf-8")


def test_quiet_hides_the_log_and_the_bar(directory, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(messages, "_level", messages.Level.QUIET)
    run_tracker(directory)
    assert screen.getvalue() == ""
    assert "step 2 epoch 1" in directory.log.read_text(encoding="utf-8")


class BrokenTerminal(Terminal):
    """A terminal that was closed: it shows nothing, and every write fails."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def flush(self) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_closed_terminal_does_not_stop_the_run(directory, monkeypatch):
    monkeypatch.setattr("sys.stderr", BrokenTerminal())
    run_tracker(directory)
    assert len(read_rows(directory.metrics)) == 4


def break_files(directory: RunDirectory) -> None:
    """Make every log output impossible to write, even for root: a folder where a file is expected, and vice versa."""
    for path in (directory.log, directory.metrics, directory.timing, directory.curves):
        path.mkdir()
    directory.samples.rmdir()
    for path in (directory.samples, directory.tensorboard):
        path.write_text("", encoding="utf-8")


def test_logs_that_cannot_be_written_give_one_warning_each(directory, capsys):
    break_files(directory)
    run_tracker(directory)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    named = [line.split()[1] for line in warnings]
    expected = ["train.log", "metrics.csv", "timing.csv", "samples/"]
    assert [name for name in named if name != "tb/"] == expected  # TensorBoard is optional
    assert directory.metrics.is_dir()


def test_failed_row_leaves_no_partial_row(directory):
    """A full disk is simulated by the file size limit of a child process."""
    code = """
import resource, signal, sys
from pathlib import Path
from saccade.training.runs.csv_log import append_row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for step in range(100):
    try:
        append_row(Path(sys.argv[1]), ("step", "loss"), {"step": step, "loss": 1.5})
    except OSError:
        print(step)
        break
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory.metrics)], capture_output=True, text=True, check=True
    )
    rows = read_rows(directory.metrics)
    assert [int(row["step"]) for row in rows] == list(range(int(done.stdout)))
    assert all(row["loss"] == "1.5" for row in rows)
    assert len(rows) > 3


def test_metrics_samples_and_events_are_written(directory):
    run_tracker(directory)
    rows = read_rows(directory.metrics)
    assert [row["step"] for row in rows] == ["2", "4", "4", "6"]
    assert rows[0]["nll"] == "2.25"
    assert rows[2]["valid_bleu"] == "12.5"
    assert "output     two" in (directory.samples / "step-4.txt").read_text(encoding="utf-8")
    assert directory.curves.is_file()


def test_tensorboard_has_the_metrics(directory):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="optional")
    run_tracker(directory)
    events = accumulator.EventAccumulator(str(directory.tensorboard)).Reload()
    assert [round(event.value, 4) for event in events.Scalars("loss")] == [4.5, 1.75, 1.1]
    assert [event.step for event in events.Scalars("valid/bleu")] == [4]


def test_rows_after_the_checkpoint_are_dropped_on_resume(directory):
    """Also an incomplete row: the files keep the size recorded in the checkpoint."""
    run_tracker(directory)
    tracker = RunTracker(directory, objective_metrics=["nll"], validation_metrics=["bleu"], log_every=2)
    sizes = tracker.file_sizes()
    before = [path.read_bytes() for path in (directory.metrics, directory.timing)]
    tracker.update(update(8, 1.0), Progress(step=8), None)
    with directory.metrics.open("a", encoding="utf-8") as file:
        file.write("1")
    tracker.rewind(6, sizes)
    assert [path.read_bytes() for path in (directory.metrics, directory.timing)] == before
    directory.metrics.write_text("", encoding="utf-8")
    tracker.rewind(6, sizes)
    tracker.close("finished")
    assert "metrics.csv: is shorter than at step 6" in directory.log.read_text(encoding="utf-8")


def test_throughput_excludes_pauses(monkeypatch):
    clock = iter([0.0, 1.0, 50.0, 51.0])
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(clock))
    speed = Throughput()
    assert speed.tokens_per_second() == 0.0
    speed.add(100)
    speed.add(100)
    speed.pause()
    speed.add(100)
    speed.add(300)
    assert speed.tokens_per_second() == 200.0


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0 s"), (42, "42 s"), (200, "3 min"), (3900, "1 h 05 min")])
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_a_short_run_has_ten_points_and_a_long_one_no_more_than_needed():
    logged = [step for step in range(1, 2001) if step % log_interval(step) == 0]
    for length in range(10, 2000, 7):
        assert 10 <= sum(step <= length for step in logged) <= 32 + length // 50
    assert set(range(50, 2001, 50)) <= set(logged)


def test_first_updates_are_logged_more_often_unless_the_interval_is_given(directory):
    for log_every, expected in ((None, [1, 2, 3, 4, 5]), (2, [2, 4])):
        tracker = RunTracker(directory, objective_metrics=["nll"], validation_metrics=[], log_every=log_every)
        tracker.rewind(0, {})
        for step in range(1, 6):
            tracker.update(update(step, 1.0), Progress(step=step, seconds=1.0), None)
        tracker.close("finished")
        assert [int(row["step"]) for row in read_rows(directory.metrics)] == expected
