"""A whole comparison: every model in its turn, each in processes of its own, then one table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from saccade.data.reading.pair_files import read_lines
from saccade.errors import SaccadeError
from saccade.folder import json_text, replace_file
from saccade.studies.comparison.alignments import Alignment, read_alignment, write_alignment
from saccade.studies.comparison.entries import Entry
from saccade.studies.comparison.identity import STATE, check_same, identity_of
from saccade.studies.comparison.pictures import Picture, draw_pictures
from saccade.studies.comparison.process import STOPS, Ended, Start, death, in_a_process
from saccade.studies.comparison.report import Report, html_text, markdown_text
from saccade.studies.comparison.request import Request
from saccade.studies.comparison.result import Result, outputs_path, read_result, run_path, write_result
from saccade.studies.comparison.standings import Standings, standings_of
from saccade.studies.comparison.tables import csv_text, figures, tables_of
from saccade.studies.comparison.worker import Job, write_job
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.lock import run_lock
from saccade.version import __version__

INTERRUPTED = frozenset(128 + number for number in STOPS)
TITLE = "Models on the same data, with the same budget"


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
    request.check_data()
    request.references()
    identity = identity_of(request)
    check_same(request, identity)
    prepare(request.output)
    with run_lock(request.output):
        state: dict[str, object] = {"saccade": __version__, "command": command, "settings": identity}
        keep_state(request.output, state)
        for number, entry in enumerate(request.entries, start=1):
            print(f"model {number} of {len(request.entries)}: {entry.name} ({entry.preset})", file=sys.stderr)
            code = finish(request, entry, start or in_a_process)
            if code is not None:
                return Outcome(None, [], code)
        found = standings_of(request)
        pictures = write_report(request, found, command)
        machines = {row.entry.name: row.result.machine for row in found.rows}
        rows = [figures(row, found) for row in found.rows]
        keep_state(request.output, {**state, "machines": machines, "rows": rows})
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
    phases = phases_left(request, entry)
    if not phases:
        print(f"{entry.name}: done before", file=sys.stderr)
        return None
    directory = RunDirectory(run_path(request.output, entry.name))
    if directory.config.is_file():
        with run_lock(directory.path):  # refused if a worker of a comparison that was killed is still at it
            pass
    settings, test = dict(request.settings), str(request.test_source)
    job = Job(entry, settings, request.budget, test, str(request.output), request.sentence)
    path = request.output / "jobs" / f"{entry.name}.json"
    write_job(path, job)
    for phase in phases:
        ended = start(phase, path)
        if ended.code in INTERRUPTED:
            return ended.code
        if ended.code != 0:
            keep_failure(request, entry, phase, ended)
            return None
    return None


def phases_left(request: Request, entry: Entry) -> list[str]:
    """What is still to be done for a model; outputs that are not whole are made again."""
    result = read_result(request.output, entry.name)
    if result is None or result.config is None:
        return ["plan", "train"]
    if result.status != "done":
        return ["train"]
    if not outputs_are_whole(request, entry.name):
        print(f"{entry.name}: its outputs are not whole, and are made again", file=sys.stderr)
        write_result(request.output, replace(result, status="trained", decoded=None))
        return ["train"]
    drawn = not entry.attends or read_alignment(request.output, entry.name, request.drawn_sentence()) is not None
    return [] if drawn else ["align"]


def outputs_are_whole(request: Request, name: str) -> bool:
    """Whether there is an output for every test sentence."""
    try:
        return len(list(read_lines(outputs_path(request.output, name)))) == len(request.sources())
    except SaccadeError:
        return False


def keep_failure(request: Request, entry: Entry, phase: str, ended: Ended) -> None:
    """Write down why a phase failed, if its process could not do that itself."""
    reason = " ".join((ended.reason or death(ended.code)).split())
    if phase == "align":
        write_alignment(request.output, entry.name, Alignment(request.drawn_sentence(), fault=reason))
        return
    result = read_result(request.output, entry.name) or Result(entry.name, "failed")
    if result.status != "failed" or result.reason != reason:
        write_result(request.output, result.failed(reason))


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
