"""The speed of training, side by side: a fixed number of updates after a warm-up, in a fresh process each round."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.environments import Environment
from bench.places import CACHE
from bench.processes import Outcome, run_job
from bench.series import Contest, Contestant, Series, Turn, machine_limits, take_turns
from bench.sizes import BATCH_TOKENS, DROPOUT, LABEL_SMOOTHING, SIZES, Size
from bench.work import Work, job_for, prepare


class Entry(NamedTuple):
    """A way to train, and whose it is."""

    name: str
    peer: str
    task: str = "training"


ENTRIES = (
    Entry("Saccade", "saccade"),
    Entry("transformers, plain loop", "transformers"),
    Entry("transformers, Seq2SeqTrainer", "transformers", "trainer"),
    Entry("eole", "eole"),
    Entry("Joey NMT", "joeynmt"),
)
ABSENT = (Entry("fairseq", "fairseq"), Entry("OpenNMT-py", "opennmt-py"), Entry("Sockeye", "sockeye"))


def contest_of_training(
    size_name: str,
    environments: Mapping[str, Environment],
    *,
    rounds: int,
    updates: int | None = None,
    warmup: int | None = None,
    limit_seconds: float = 2.0,
) -> Contest:
    """Every trainer that is installed, in turn."""
    work, size = prepare(size_name), SIZES[size_name]
    size = replace(size, updates=updates or size.updates, warmup=size.warmup if warmup is None else warmup)
    series = Series("tokens", f"training {size.preset}, {size.pieces:,} pieces", "target tokens/s")
    contest = Contest(f"training {size_name}", [series])
    contest.remarks.append(
        f"{work.data}, batches of {BATCH_TOKENS} tokens with padding, dropout {DROPOUT}, label smoothing "
        f"{LABEL_SMOOTHING}, Adam; target tokens without padding; {size.updates} updates a round after "
        f"{size.warmup} that are not counted"
    )
    note_the_absent(contest, environments, [*ENTRIES, *ABSENT])
    able = {"saccade", *(peer for peer, found in environments.items() if found.ready)}
    contestants = [
        Contestant(entry.name, lambda entry=entry: turn(entry, size_name, size, work, series))
        for entry in ENTRIES
        if entry.peer in able
    ]
    return take_turns(contest, contestants, rounds, limits=lambda: machine_limits(limit_seconds))


def note_the_absent(contest: Contest, environments: Mapping[str, Environment], entries: Sequence[Entry]) -> None:
    """Say who was asked for and cannot run, and why."""
    for entry in entries:
        found = environments.get(entry.peer)
        if found is not None and (entry in ABSENT or not found.ready):
            contest.reasons[entry.name] = found.reason or "installs here, but nobody has written its job yet"


def turn(entry: Entry, size_name: str, size: Size, work: Work, series: Series) -> Turn:
    """One process of one trainer."""
    outcome = train_once(entry, size_name, size, work)
    if outcome.result is None:
        return Turn(reason=outcome.reason)
    if "flops_per_token" in outcome.result:
        series.flops_a_unit = outcome.result["flops_per_token"]
    series.notes[entry.name] = f"{outcome.result['version']}, {outcome.result['megabytes']:,.0f} MB"
    return Turn({"tokens": sum(outcome.result["tokens"]) / sum(outcome.result["seconds"])})


def train_once(entry: Entry, size_name: str, size: Size, work: Work) -> Outcome:
    """Seconds and tokens of the updates of one process."""
    folder = CACHE / "scratch" / f"{entry.peer}-{entry.task}-{size_name}"
    shutil.rmtree(folder, ignore_errors=True)
    job = job_for(
        size_name,
        work,
        name=f"{entry.task}-{entry.peer}-{size_name}",
        task=entry.task,
        folder=str(folder),
        warmup=size.warmup,
        updates=size.updates,
        dropout=DROPOUT,
        label_smoothing=LABEL_SMOOTHING,
    )
    return run_job(entry.peer, job)
