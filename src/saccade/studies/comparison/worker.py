"""One model of a comparison, in a process of its own, so that its peak memory is its own too.

The phase `plan` makes the token cache and decides the number of updates; the phase `train` trains, or goes on with a
training, and translates the test set; the phase `align` draws another sentence than before. What it finds goes into the
result of the model. `launch` starts it.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from saccade.config import build
from saccade.errors import SaccadeError, is_out_of_memory
from saccade.folder import damaged, json_text, read_json, replace_file
from saccade.inference.device import choose_device
from saccade.inference.loading import load
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes
from saccade.studies.comparison.alignments import Alignment, alignment_of, write_alignment
from saccade.studies.comparison.budget import Budget
from saccade.studies.comparison.entries import Entry
from saccade.studies.comparison.identity import PLACES
from saccade.studies.comparison.machine import measured_with
from saccade.studies.comparison.planning import plan, planned_settings
from saccade.studies.comparison.process import Ended
from saccade.studies.comparison.request import Request
from saccade.studies.comparison.result import (
    Decoded,
    Result,
    Trained,
    outputs_path,
    read_result,
    run_path,
    write_result,
)
from saccade.studies.comparison.trial import measure, tokens_an_update
from saccade.training.checkpoints.checkpoint import list_checkpoints, load_state
from saccade.training.compute_settings import configure_process
from saccade.training.config import RunConfig
from saccade.training.preflight.process_memory import peak_memory
from saccade.training.run import resume, train
from saccade.training.runs.csv_log import read_rows
from saccade.training.runs.data import RunData, check_lengths, load_data
from saccade.training.runs.directory import RunDirectory

FAILED = 3  # Python itself leaves with 1 or 2
INTERRUPTED = {"Ctrl-C": 128 + signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM}
WARM_UP = 8  # sentences that are translated before the clock starts


@dataclass(frozen=True)
class Job:
    """What the worker must know of the comparison."""

    entry: Entry
    settings: dict[str, Any]
    budget: Budget
    test_source: str
    output: str
    sentence: str | None

    @property
    def request(self) -> Request:
        """The comparison with this model alone; nothing here looks at the references."""
        output, test = Path(self.output), Path(self.test_source)
        return Request((self.entry,), self.settings, self.budget, test, (), output, self.sentence)


def write_job(path: Path, job: Job) -> None:
    """Write a job for the worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text({**asdict(job), "entry": list(job.entry)}))


def read_job(path: Path) -> Job:
    """The job that was written."""
    values = read_json(path)
    try:
        return Job(**{**values, "entry": Entry(*values["entry"]), "budget": Budget(**values["budget"])})
    except (KeyError, TypeError):
        raise damaged(path, "is no job of a comparison") from None


class Teller:
    """Tells what happens to the data on the standard error."""

    def say(self, message: str) -> None:
        """One line."""
        print(message, file=sys.stderr)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Nothing: this is over soon."""


def plan_run(job: Job) -> int:
    """Decide how long the model trains; returns the exit code."""
    request, entry = job.request, job.entry
    # Settings that do not depend on the length of the run are those of the real one in the trial too.
    config = request.rehearsed(entry)
    data = load_data(config.data, Teller())
    check_readable(request, config, data)
    speed = None if job.budget.minutes is None else measure(data, config, 60 * job.budget.minutes)
    fewer = "valid_sentences" not in request.settings.get("training", {})
    found = plan(job.budget, tokens_an_update(data, config), speed, fewer=fewer, training=config.training)
    final = request.config(entry, planned_settings(found, job.budget, request.config(entry)))
    write_result(request.output, Result(entry.name, "planned", final.model_dump(mode="json"), found))
    timed = f", {speed.seconds_an_update:.3g} s each in a trial" if speed else ""
    print(f"{entry.name}: {found.updates:,} updates are planned{timed}", file=sys.stderr)
    return 0


def check_readable(request: Request, config: RunConfig, data: RunData) -> None:
    """Refuse texts that are too long for the model before it has learnt for hours."""
    model: Any = config.choice().build(vocabulary_sizes(data.tokenizers))
    check_lengths(model, data)
    if model.longest is None:
        return
    lengths = [len(ids) + 1 for ids in data.tokenizers.source.encode_batch(request.sources())]
    longest = max(lengths)
    if longest > model.longest:
        raise SaccadeError(
            f"line {lengths.index(longest) + 1:,} has {longest:,} tokens, the model {model.longest:,} positions",
            where=str(request.test_source),
            do="raise --model.max-positions, or leave this line out of the test set",
        )


def train_run(job: Job) -> int:
    """Train or go on, then translate the test set and draw the sentence; returns the exit code."""
    output, name = Path(job.output), job.entry.name
    result, config = planned(job)
    directory = RunDirectory(run_path(output, name))
    if result.trained is None:
        ended = resume(directory.path, places_in(config)) if directory.config.is_file() else train(config)
        # This includes the longest possible batch, which every run is tried with before it learns.
        peak = max(result.peak_memory, peak_memory(choose_device(config.training.device)))
        if ended.interrupted is not None:
            write_result(output, replace(result, status="planned", reason=None, peak_memory=peak))
            return INTERRUPTED[ended.interrupted]
        result = replace(
            result,
            status="trained",
            reason=None,
            peak_memory=peak,
            trained=account_of(directory),
            machine=measured_with(),
        )
        write_result(output, result)
    else:
        configure_process(config.training)
    translator = load(directory.path, config.training.device, engine="torch")
    translated = translate(job.request, result, translator)
    draw(job, translator)
    write_result(output, translated)
    return 0


def planned(job: Job) -> tuple[Result, RunConfig]:
    """What is known of the model, and its run as it was planned; where its files lie is said by the present job."""
    output, name = Path(job.output), job.entry.name
    result = read_result(output, name)
    if result is None or result.config is None:
        raise SaccadeError(f"{name} has no plan", where=str(output / "results"), do="run the comparison again")
    before, now = build(RunConfig, result.config, where=name), job.request.config(job.entry)
    data = before.data.model_copy(update={place: getattr(now.data, place) for place in PLACES})
    config = before.model_copy(update={"data": data, "output": now.output})
    return replace(result, config=config.model_dump(mode="json")), config


def places_in(config: RunConfig) -> dict[str, Any]:
    """The settings that a resumed run may find changed: where its files lie."""
    return {"data": config.data.model_dump(mode="json", include=set(PLACES))}


def account_of(directory: RunDirectory) -> Trained:
    """What a finished training cost."""
    progress = load_state(list_checkpoints(directory.checkpoints)[-1]).progress
    rows = read_rows(directory.timing) if directory.timing.exists() else []
    rates = [rate for row in rows if (rate := float(row["tokens_per_second"])) > 0]
    return Trained(
        updates=progress.step,
        seconds=progress.seconds,
        target_tokens=progress.target_tokens,
        tokens_a_second=median(rates) if rates else progress.target_tokens / progress.seconds,
        flops=progress.flops,
        data=str(read_json(directory.data)["digest"]),
    )


def translate(request: Request, result: Result, translator: Translator) -> Result:
    """Translate the test set and keep the outputs."""
    sources = request.sources()
    list(translator.stream(sources[:WARM_UP]))
    began = time.perf_counter()
    found = list(translator.stream(sources))
    seconds = time.perf_counter() - began
    path = outputs_path(request.output, result.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(f"{one.text}\n" for one in found))
    tokens = sum(len(one.candidates[0].tokens) + 1 for one in found)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    decoded = Decoded(seconds, len(sources), tokens)
    return replace(result, status="done", reason=None, parameters=parameters, decoded=decoded)


def align_run(job: Job) -> int:
    """Draw the sentence of the comparison with a model that is done; returns the exit code."""
    _, config = planned(job)
    configure_process(config.training)
    draw(job, load(run_path(Path(job.output), job.entry.name), config.training.device, engine="torch"))
    return 0


def draw(job: Job, translator: Translator) -> None:
    """Keep where the model looks, if it can, or why that is not known: a score does not depend on it."""
    if not job.entry.attends:
        return
    sentence = job.request.drawn_sentence()
    try:
        found = alignment_of(sentence, translator.explain(sentence))
    except SaccadeError as error:
        found = Alignment(sentence, fault=error.what)
    write_alignment(job.request.output, job.entry.name, found)


PHASES = {"plan": plan_run, "train": train_run, "align": align_run}


def run_phase(phase: str, job: Job) -> Ended:
    """Do one phase; a fault goes into the result, and the others of the comparison go on."""
    output, name = Path(job.output), job.entry.name
    try:
        return Ended(PHASES[phase](job))
    except KeyboardInterrupt:
        return Ended(INTERRUPTED["Ctrl-C"])
    except Exception as error:
        reason = reason_of(error)
        if phase != "align":  # its model is done, whatever happens to the picture
            with suppress(OSError, SaccadeError):  # on a full disk; whoever started this writes it then
                write_result(output, (read_result(output, name) or Result(name, "failed")).failed(reason))
        return Ended(FAILED, reason)


def reason_of(error: Exception) -> str:
    """What went wrong, in a person's words; a fault of ours has a traceback besides."""
    if is_out_of_memory(error):
        return "out of memory"
    if isinstance(error, SaccadeError):
        return error.one_line
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    import traceback

    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
