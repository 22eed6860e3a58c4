"""The phases of one model of a comparison, each in its own worker process, so that peak memory is measured separately.

The phase `plan` builds the token cache and plans the number of updates; `train` trains, or resumes, and translates the
test set; `align` computes the alignment of another sentence. Results go to the files of the model.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from saccade import messages
from saccade.config import build
from saccade.errors import SaccadeError
from saccade.folder import damaged, json_text, read_json, replace_file
from saccade.inference.device import choose_device
from saccade.inference.loading import load
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes
from saccade.studies.comparison.budget import Budget, make_plan, planned_settings
from saccade.studies.comparison.machine import measured_with
from saccade.studies.comparison.request import Entry, Request
from saccade.studies.comparison.results import (
    Alignment,
    DecodingCost,
    Result,
    TrainingCost,
    make_alignment,
    outputs_path,
    read_result,
    run_path,
    write_alignment,
    write_result,
)
from saccade.studies.comparison.shared_settings import FREE_DATA_SETTINGS
from saccade.studies.comparison.trial import measure_speed, tokens_per_update
from saccade.training.checkpoints.checkpoint import list_checkpoints, load_state
from saccade.training.compute_settings import configure_process
from saccade.training.config import RunConfig
from saccade.training.preflight.process_memory import peak_memory
from saccade.training.run import resume, train
from saccade.training.runs.console_progress import ConsoleProgress
from saccade.training.runs.csv_log import read_rows
from saccade.training.runs.data import RunData, check_lengths, load_data
from saccade.training.runs.directory import RunDirectory
from saccade.workers.messages import Message
from saccade.workers.process import running_worker
from saccade.workers.replies import Handler, WorkerDiedError, describe_exit
from saccade.workers.stop_signals import STOP_SIGNALS, forwarded_signals

INTERRUPTED = frozenset(128 + number for number in STOP_SIGNALS)
EXIT_CODES = {"Ctrl-C": 128 + signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM, "SIGHUP": 128 + signal.SIGHUP}
WARM_UP_SENTENCES = 8  # translated before the clock starts


class PhaseEnd(NamedTuple):
    """How a phase ended; it is done if both are None."""

    interrupted: int | None = None  # the exit code of a user's interruption
    failure: str | None = None


RunPhase = Callable[[str, Path], PhaseEnd]
"""Function that runs a phase of the job in a file."""


@dataclass(frozen=True)
class ModelJob:
    """One model of a comparison: the job file that its worker reads."""

    entry: Entry
    settings: dict[str, Any]
    budget: Budget
    test_source: str
    output: str
    sentence: str | None

    @property
    def request(self) -> Request:
        """The comparison of this model alone; phases need no references."""
        output, test = Path(self.output), Path(self.test_source)
        return Request((self.entry,), self.settings, self.budget, test, (), output, self.sentence)


def write_job(path: Path, job: ModelJob) -> None:
    """Write a job for the worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text({**asdict(job), "entry": list(job.entry)}))


def read_job(path: Path) -> ModelJob:
    """Read a job."""
    values = read_json(path)
    try:
        return ModelJob(**{**values, "entry": Entry(*values["entry"]), "budget": Budget(**values["budget"])})
    except (KeyError, TypeError):
        raise damaged(path, "is not a job of a comparison") from None


def run_in_worker(phase: str, path: Path) -> PhaseEnd:
    """Run a phase in a new worker; the first stop signal is forwarded, so that it saves; a second Ctrl-C kills it."""
    with forwarded_signals() as signals, running_worker(__name__) as worker:
        signals.forward_to(worker.process)
        end = phase_end(worker.request, phase, path)
        worker.finish()
    return PhaseEnd(interrupted=128 + signals.received[0]) if signals.received else end


def phase_end(send: Handler, phase: str, path: Path) -> PhaseEnd:
    """Send the request for a phase and return how the phase ended."""
    try:
        return PhaseEnd(send(Message({"phase": phase, "job": str(path)})).values["interrupted"])
    except WorkerDiedError as error:
        if error.status in INTERRUPTED:
            return PhaseEnd(interrupted=error.status)
        return PhaseEnd(failure=f"its process {describe_exit(error.status)}")
    except SaccadeError as error:
        return PhaseEnd(failure=error.one_line)


def make_handler(setup: Message) -> Handler:
    """Return the handler of a worker, which runs one phase for each request."""
    return run_phase


def run_phase(request: Message) -> Message:
    """Run a phase; the result contains the exit code if the user interrupted it."""
    job = read_job(Path(request.values["job"]))
    return Message({"interrupted": PHASES[request.values["phase"]](job)})


def plan_phase(job: ModelJob) -> None:
    """Build the token cache, and plan the number of updates."""
    request, entry = job.request, job.entry
    # The trial has the settings of the run, except those that depend on its length.
    config = request.provisional_config(entry)
    with ConsoleProgress() as progress:
        data = load_data(config.data, progress)
    check_test_lengths(request, config, data)
    speed = None if job.budget.minutes is None else measure_speed(data, config, 60 * job.budget.minutes)
    plan = make_plan(
        job.budget,
        tokens_per_update(data, config),
        speed,
        fewer_sentences="valid_sentences" not in request.settings.get("training", {}),
        training=config.training,
    )
    final = request.config(entry, planned_settings(plan, job.budget, request.config(entry)))
    write_result(request.output, Result(entry.name, "planned", final.model_dump(mode="json"), plan))
    per_update = f", {speed.seconds_an_update:.3g} s per update in a trial" if speed else ""
    messages.note(f"{entry.name}: {plan.updates:,} updates are planned{per_update}")


def check_test_lengths(request: Request, config: RunConfig, data: RunData) -> None:
    """Raise an error before the training if a text is too long for the model."""
    model: Any = config.choice().build(vocabulary_sizes(data.tokenizers))
    check_lengths(model, data)
    if model.max_target_positions is None:
        return
    lengths = [len(ids) + 1 for ids in data.tokenizers.source.encode_batch(request.sources())]
    longest = max(lengths)
    if longest > model.max_target_positions:
        raise SaccadeError(
            f"line {lengths.index(longest) + 1:,} has {longest:,} tokens, "
            f"the model {model.max_target_positions:,} positions",
            where=str(request.test_source),
            hint="raise --model.max-positions, or leave this line out of the test set",
        )


def train_phase(job: ModelJob) -> int | None:
    """Train or resume, then translate the test set and compute the alignment; return the exit code if interrupted."""
    output, name = Path(job.output), job.entry.name
    result, config = planned_run(job)
    directory = RunDirectory(run_path(output, name))
    if result.trained is None:
        ended = resume(directory.path, file_settings(config)) if directory.config.is_file() else train(config)
        # The peak includes the longest batch, which every run tests before training.
        peak = max(result.peak_memory, peak_memory(choose_device(config.training.device)))
        if ended.interrupted is not None:
            write_result(output, replace(result, status="planned", reason=None, peak_memory=peak))
            return EXIT_CODES[ended.interrupted]
        result = replace(
            result,
            status="trained",
            reason=None,
            peak_memory=peak,
            trained=training_cost(directory),
            machine=measured_with(),
        )
        write_result(output, result)
    else:
        configure_process(config.training)
    translator = load(directory.path, config.training.device, engine="torch")
    translated = translate(job.request, result, translator)
    align(job, translator)
    write_result(output, translated)
    return None


def planned_run(job: ModelJob) -> tuple[Result, RunConfig]:
    """Return the result of a model and its planned config, with the current paths of files."""
    output, name = Path(job.output), job.entry.name
    result = read_result(output, name)
    if result is None or result.config is None:
        raise SaccadeError(f"{name} has no plan", where=str(output / "results"), hint="run the comparison again")
    before, now = build(RunConfig, result.config, where=name), job.request.config(job.entry)
    data = before.data.model_copy(update={setting: getattr(now.data, setting) for setting in FREE_DATA_SETTINGS})
    config = before.model_copy(update={"data": data, "output": now.output})
    return replace(result, config=config.model_dump(mode="json")), config


def file_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that may differ when a run is resumed: the paths of its files."""
    return {"data": config.data.model_dump(mode="json", include=set(FREE_DATA_SETTINGS))}


def training_cost(directory: RunDirectory) -> TrainingCost:
    """Return the cost of a finished training."""
    progress = load_state(list_checkpoints(directory.checkpoints)[-1]).progress
    rows = read_rows(directory.timing) if directory.timing.exists() else []
    rates = [rate for row in rows if (rate := float(row["tokens_per_second"])) > 0]
    return TrainingCost(
        updates=progress.step,
        seconds=progress.seconds,
        target_tokens=progress.target_tokens,
        tokens_a_second=median(rates) if rates else progress.target_tokens / progress.seconds,
        flops=progress.flops,
        data=str(read_json(directory.data)["digest"]),
    )


def translate(request: Request, result: Result, translator: Translator) -> Result:
    """Translate the test set, write the outputs and return the result with their cost."""
    sources = request.sources()
    list(translator.stream(sources[:WARM_UP_SENTENCES]))
    started = time.perf_counter()
    translations = list(translator.stream(sources))
    seconds = time.perf_counter() - started
    path = outputs_path(request.output, result.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(f"{translation.text}\n" for translation in translations))
    tokens = sum(len(translation.candidates[0].tokens) + 1 for translation in translations)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    decoded = DecodingCost(seconds, len(sources), tokens)
    return replace(result, status="done", reason=None, parameters=parameters, decoded=decoded)


def align_phase(job: ModelJob) -> None:
    """Compute the alignment of the sentence with a model that is done."""
    _, config = planned_run(job)
    configure_process(config.training)
    align(job, load(run_path(Path(job.output), job.entry.name), config.training.device, engine="torch"))


def align(job: ModelJob, translator: Translator) -> None:
    """Write the alignment of a model with cross-attention; an error is stored in its place."""
    if not job.entry.has_cross_attention:
        return
    sentence = job.request.plotted_sentence()
    try:
        alignment = make_alignment(sentence, translator.explain(sentence))
    except SaccadeError as error:
        alignment = Alignment(sentence, fault=error.what)
    write_alignment(job.request.output, job.entry.name, alignment)


PHASES: dict[str, Callable[[ModelJob], int | None]] = {"plan": plan_phase, "train": train_phase, "align": align_phase}
