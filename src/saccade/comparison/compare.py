"""A whole comparison: every model in its turn, each in processes of its own, then one table."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from saccade.comparison.entries import Entry
from saccade.comparison.pictures import Picture, draw_pictures
from saccade.comparison.report import Report, html_text, markdown_text
from saccade.comparison.request import STATE, Request, check_same
from saccade.comparison.result import Result, read_result, write_result
from saccade.comparison.standings import Standings, standings_of
from saccade.comparison.tables import csv_text, figures, tables_of
from saccade.comparison.worker import FAILED, INTERRUPTED, Job, write_job
from saccade.errors import SaccadeError
from saccade.folder import json_text, replace_file
from saccade.training.interruption import Interruption
from saccade.training.lock import run_lock
from saccade.version import __version__

LOOK = 0.2  # seconds between two looks at a worker
TITLE = "Models on the same data, with the same budget"

Start = Callable[[str, Path], int]
"""Runs a phase of the job in a file and returns its exit code."""


@dataclass(frozen=True)
class Outcome:
    """What a comparison came to."""

    standings: Standings | None  # None if it was interrupted
    pictures: list[Picture]
    interrupted: int | None = None  # the exit code

    @property
    def failed(self) -> bool:
        """Whether a model failed."""
        return self.standings is not None and any(row.bleu is None for row in self.standings.rows)


def compare(request: Request, command: str, start: Start | None = None) -> Outcome:
    """Train, translate and score every model that is not done yet; `command` is what repeats this.

    The same request for the same output goes on where it was interrupted. Other settings are refused.
    """
    request.check()
    request.references()
    identity = request.identity()
    check_same(request.output, identity)
    prepare(request.output)
    with run_lock(request.output):
        keep_state(request.output, {"saccade": __version__, "command": command, "settings": identity})
        for number, entry in enumerate(request.entries, start=1):
            print(f"model {number} of {len(request.entries)}: {entry.name} ({entry.preset})", file=sys.stderr)
            code = finish(request, entry, start or in_a_process)
            if code is not None:
                return Outcome(None, [], code)
        found = standings_of(request)
        pictures = write_report(request, found, command)
        rows = [figures(row, found) for row in found.rows]
        keep_state(
            request.output,
            {"saccade": __version__, "command": command, "settings": identity, "rows": rows},
        )
    return Outcome(found, pictures)


def prepare(output: Path) -> None:
    """Make the folder."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(output), do="choose another --output"
        ) from None


def keep_state(output: Path, values: dict[str, object]) -> None:
    """What the comparison is, and what it found."""
    replace_file(output / STATE, json_text(values))


def finish(request: Request, entry: Entry, start: Start) -> int | None:
    """Do what is left of one model; returns an exit code if the user interrupted it."""
    result = read_result(request.output, entry.name)
    if result is not None and result.status == "done":
        print(f"{entry.name}: done before", file=sys.stderr)
        return None
    job = Job(
        entry,
        dict(request.settings),
        request.budget,
        str(request.test_source),
        str(request.output),
        request.sentence,
    )
    path = request.output / "jobs" / f"{entry.name}.json"
    write_job(path, job)
    phases = ["train"] if result is not None and result.config is not None else ["plan", "train"]
    for phase in phases:
        code = start(phase, path)
        if code in INTERRUPTED.values():
            return code
        if code == FAILED:
            return None
        if code != 0:  # the process could not say what went wrong
            before = read_result(request.output, entry.name) or Result(entry.name, "failed")
            write_result(request.output, before.failed(death(code)))
            return None
    return None


def death(code: int) -> str:
    """What the exit code of a process says that did not say it itself."""
    if code == -signal.SIGKILL:
        return "its process was killed by the system, which does that when memory runs out"
    return f"its process was ended by signal {-code}" if code < 0 else f"its process left with exit code {code}"


def in_a_process(phase: str, job: Path) -> int:
    """Run a phase in a fresh process."""
    return run_process([sys.executable, "-m", "saccade.comparison.worker", phase, str(job)])


def run_process(words: Sequence[str]) -> int:
    """Run a command; a signal to this process reaches that one, which saves before it leaves.

    In a terminal Ctrl-C goes to both. The other gets SIGTERM as well then, which asks for the same.
    """
    with Interruption() as interruption:
        process = subprocess.Popen(words)
        told = False
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(LOOK)
                    break
                if interruption.signal is not None and not told:
                    process.terminate()
                    told = True
        finally:
            if process.poll() is None:  # a second Ctrl-C
                process.kill()
                process.wait()
    return INTERRUPTED[interruption.name] if interruption.signal is not None else code


def write_report(request: Request, found: Standings, command: str) -> list[Picture]:
    """The table as CSV, Markdown and HTML, and the pictures."""
    output = request.output
    pictures = draw_pictures(found, output)
    report = Report(
        TITLE, summary_of(request, found), tables_of(found), pictures, found.notes, command, found.signatures
    )
    for name, text in (
        ("compare.csv", csv_text(found)),
        ("compare.md", markdown_text(report)),
        ("compare.html", html_text(report)),
    ):
        replace_file(output / name, text)
    return pictures


def summary_of(request: Request, found: Standings) -> str:
    """What was done, in two sentences."""
    beams = sorted({row.result.config["decoding"]["beam"] for row in found.rows if row.result.config})
    beam = f"beam {' or '.join(map(str, beams))}" if beams else "beam search"
    return (
        f"Each model was trained with the settings of its family and a budget of {request.budget}, on the same pairs. "
        f"The {found.sentences:,} test sentences were translated with {beam}. Intervals are those of 1,000 bootstrap "
        "resamples."
    )
