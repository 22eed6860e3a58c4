"""A comparison: train, translate and score each model in turn, then write one report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from saccade import messages
from saccade.data.reading.pair_files import read_lines
from saccade.errors import SaccadeError, not_written
from saccade.folder import json_text, replace_file
from saccade.studies.comparison.phases import ModelJob, RunPhase, run_in_worker, write_job
from saccade.studies.comparison.report import Plot, write_report
from saccade.studies.comparison.request import Entry, Request
from saccade.studies.comparison.results import (
    Alignment,
    Result,
    outputs_path,
    read_alignment,
    read_result,
    run_path,
    write_alignment,
    write_result,
)
from saccade.studies.comparison.scores import Scores, score_models
from saccade.studies.comparison.shared_settings import STATE, check_same_settings, shared_settings
from saccade.studies.comparison.tables import row_figures
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.lock import run_lock
from saccade.version import __version__


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison."""

    scores: Scores | None  # None if it was interrupted
    plots: list[Plot]
    interrupted: int | None = None  # the exit code

    @property
    def failed(self) -> bool:
        """Whether any model failed."""
        return self.scores is not None and any(row.bleu is None for row in self.scores.rows)


def compare(request: Request, command: str, run_phase: RunPhase = run_in_worker) -> Outcome:
    """Train, translate and score every model that is not done yet; `command` repeats the comparison.

    An interrupted comparison continues with the same request and output. Other settings are an error.
    """
    request.check()
    request.check_data()
    request.references()
    settings = shared_settings(request)
    check_same_settings(request, settings)
    make_folder(request.output)
    with run_lock(request.output):
        state: dict[str, object] = {"saccade": __version__, "command": command, "settings": settings}
        write_state(request.output, state)
        for number, entry in enumerate(request.entries, start=1):
            messages.note(f"model {number} of {len(request.entries)}: {entry.name} ({entry.preset})")
            code = finish_model(request, entry, run_phase)
            if code is not None:
                return Outcome(None, [], code)
        scores = score_models(request)
        plots = write_report(request, scores, command)
        machines = {row.entry.name: row.result.machine for row in scores.rows}
        rows = [row_figures(row, scores) for row in scores.rows]
        write_state(request.output, {**state, "machines": machines, "rows": rows})
    return Outcome(scores, plots)


def make_folder(output: Path) -> None:
    """Create the output folder."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(output, error) from None


def write_state(output: Path, values: dict[str, object]) -> None:
    """Write settings and figures of the comparison."""
    replace_file(output / STATE, json_text(values))


def finish_model(request: Request, entry: Entry, run_phase: RunPhase) -> int | None:
    """Run the remaining phases of one model; return an exit code if the user interrupted it."""
    phases = remaining_phases(request, entry)
    if not phases:
        messages.note(f"{entry.name}: already done")
        return None
    directory = RunDirectory(run_path(request.output, entry.name))
    if directory.config.is_file():
        with run_lock(directory.path):  # an error if a worker of a comparison that was killed is still running
            pass
    settings, test = dict(request.settings), str(request.test_source)
    job = ModelJob(entry, settings, request.budget, test, str(request.output), request.sentence)
    path = request.output / "jobs" / f"{entry.name}.json"
    write_job(path, job)
    for phase in phases:
        end = run_phase(phase, path)
        if end.interrupted is not None:
            return end.interrupted
        if end.failure is not None:
            write_failure(request, entry, phase, end.failure)
            return None
    return None


def remaining_phases(request: Request, entry: Entry) -> list[str]:
    """Return the remaining phases of a model; if its outputs are incomplete, it translates again."""
    result = read_result(request.output, entry.name)
    if result is None or result.config is None:
        return ["plan", "train"]
    if result.status != "done":
        return ["train"]
    if not outputs_are_complete(request, entry.name):
        messages.note(f"{entry.name}: its outputs are incomplete: translating again")
        write_result(request.output, replace(result, status="trained", decoded=None))
        return ["train"]
    sentence = request.plotted_sentence()
    aligned = not entry.has_cross_attention or read_alignment(request.output, entry.name, sentence) is not None
    return [] if aligned else ["align"]


def outputs_are_complete(request: Request, name: str) -> bool:
    """Return whether there is an output for every test sentence."""
    try:
        return len(list(read_lines(outputs_path(request.output, name)))) == len(request.sources())
    except SaccadeError:
        return False


def write_failure(request: Request, entry: Entry, phase: str, failure: str) -> None:
    """Write the error of a failed phase; a model whose alignment failed still counts as done."""
    reason = " ".join(failure.split())
    if phase == "align":
        write_alignment(request.output, entry.name, Alignment(request.plotted_sentence(), fault=reason))
        return
    result = read_result(request.output, entry.name) or Result(entry.name, "failed")
    write_result(request.output, result.failed(reason))
