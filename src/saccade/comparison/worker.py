"""One model of a comparison, in a process of its own, so that its peak memory is its own too.

It is started as `python -m saccade.comparison.worker PHASE JOB`: the phase `plan` makes the token cache and decides the
number of updates, the phase `train` trains, or goes on with a training, and translates the test set. What it finds
goes into the result of the model.
"""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from saccade.comparison.budget import Budget
from saccade.comparison.entries import Entry
from saccade.comparison.planning import Plan, plan, planned_settings
from saccade.comparison.request import Request
from saccade.comparison.result import (
    Alignment,
    Decoded,
    Result,
    Trained,
    outputs_path,
    read_result,
    run_path,
    write_result,
)
from saccade.comparison.trial import measure, tokens_an_update
from saccade.config import build
from saccade.errors import SaccadeError, is_out_of_memory
from saccade.folder import damaged, json_text, read_json, replace_file
from saccade.inference.device import choose_device
from saccade.inference.translator import Translator, load
from saccade.training.config import RunConfig
from saccade.training.data import load_data
from saccade.training.directory import RunDirectory
from saccade.training.machine import prepare_machine
from saccade.training.memory import highest_memory
from saccade.training.run import resume, train
from saccade.training.state import checkpoints, load_state
from saccade.training.tracking import read_rows

FAILED = 1
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
    family = request.config(entry)
    # Settings that do not depend on the length of the run are those of the real one in the trial too.
    config = request.config(entry, planned_settings(Plan(1000, 1, 0.0), job.budget, family))
    data = load_data(config.data, Teller())
    speed = None if job.budget.minutes is None else measure(data, config, 60 * job.budget.minutes)
    found = plan(job.budget, tokens_an_update(data, config), speed)
    final = request.config(entry, planned_settings(found, job.budget, family))
    write_result(request.output, Result(entry.name, "planned", final.model_dump(mode="json"), found))
    timed = f", {speed.seconds_an_update:.3g} s each in a trial" if speed else ""
    print(f"{entry.name}: {found.updates:,} updates are planned{timed}", file=sys.stderr)
    return 0


def train_run(job: Job) -> int:
    """Train and translate, or do what is left of that; returns the exit code."""
    output, name = Path(job.output), job.entry.name
    result = read_result(output, name)
    if result is None or result.config is None:
        raise SaccadeError("is not planned yet", where=str(output / "results"), do="run the comparison again")
    config = build(RunConfig, result.config, where=name)
    directory = RunDirectory(run_path(output, name))
    if result.trained is None:
        ended = resume(directory.path) if directory.config.is_file() else train(config)
        peak = max(result.peak_memory, highest_memory(choose_device(config.training.device)))
        if ended.interrupted is not None:
            write_result(output, replace(result, status="planned", reason=None, peak_memory=peak))
            return INTERRUPTED[ended.interrupted]
        result = replace(result, status="trained", reason=None, peak_memory=peak, trained=account_of(directory))
        write_result(output, result)
    else:
        prepare_machine(config.training)
    write_result(output, translate(job, result, load(directory.path, config.training.device)))
    return 0


def account_of(directory: RunDirectory) -> Trained:
    """What a finished training cost."""
    progress = load_state(checkpoints(directory.checkpoints)[-1]).progress
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


def translate(job: Job, result: Result, translator: Translator) -> Result:
    """Translate the test set and keep the outputs; explain the sentence of the comparison."""
    request, name = job.request, job.entry.name
    sources = request.sources()
    list(translator.stream(sources[:WARM_UP]))
    began = time.perf_counter()
    found = list(translator.stream(sources))
    seconds = time.perf_counter() - began
    path = outputs_path(request.output, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(f"{one.text}\n" for one in found))
    tokens = sum(len(one.candidates[0].tokens) + 1 for one in found)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    return replace(
        result,
        status="done",
        reason=None,
        parameters=parameters,
        decoded=Decoded(seconds, len(sources), tokens),
        alignment=alignment(job.entry, translator, request.sentence or chosen_sentence(sources)),
    )


def alignment(entry: Entry, translator: Translator, sentence: str) -> Alignment | None:
    """Where the model looks, if it can."""
    if not entry.attends:
        return None
    found = translator.explain(sentence)
    weights = [[round(weight, 4) for weight in row] for row in found.alignment.tolist()]
    return Alignment(found.source, found.target, list(found.source_pieces), list(found.target_pieces), weights)


def chosen_sentence(sources: list[str], low: int = 12, high: int = 18) -> str:
    """The first sentence of 12 to 18 words, or the one that comes nearest to 15."""
    lengths = [len(source.split()) for source in sources]
    suited = (source for source, length in zip(sources, lengths, strict=True) if low <= length <= high)
    nearest = min(range(len(sources)), key=lambda row: (lengths[row] == 0, abs(lengths[row] - (low + high) // 2)))
    return next(islice(suited, 1), sources[nearest])


PHASES = {"plan": plan_run, "train": train_run}


def run_phase(phase: str, job: Job) -> int:
    """Do one phase; a fault goes into the result, and the others of the comparison go on."""
    output, name = Path(job.output), job.entry.name
    try:
        return PHASES[phase](job)
    except KeyboardInterrupt:
        return INTERRUPTED["Ctrl-C"]
    except Exception as error:
        out_of_memory = is_out_of_memory(error)
        reason = "out of memory" if out_of_memory else str(error) or type(error).__name__
        if not (out_of_memory or isinstance(error, SaccadeError)):
            import traceback

            traceback.print_exc()
            reason = f"{type(error).__name__}: {reason}"
        write_result(output, (read_result(output, name) or Result(name, "failed")).failed(reason))
        return FAILED


if __name__ == "__main__":
    sys.exit(run_phase(sys.argv[1], read_job(Path(sys.argv[2]))))
