"""Training speed of Saccade and other toolkits: a fixed number of updates after warmup, in a new process per round."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.comparison import Comparison, Measurement, Series, System, measure_in_rounds, measure_machine_limits
from bench.environments import Environment
from bench.paths import CACHE
from bench.prepared_data import PreparedData, make_job, prepare
from bench.processes import Outcome, run_job
from bench.sizes import BATCH_TOKENS, DROPOUT, LABEL_SMOOTHING, SIZES, Size


class Entry(NamedTuple):
    """One entry of a comparison: its name, its peer and the task of its job."""

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
NOT_IMPLEMENTED = (Entry("fairseq", "fairseq"), Entry("OpenNMT-py", "opennmt-py"), Entry("Sockeye", "sockeye"))


def compare_training(
    size_name: str,
    environments: Mapping[str, Environment],
    *,
    rounds: int,
    updates: int | None = None,
    warmup: int | None = None,
    limit_seconds: float = 2.0,
) -> Comparison:
    """Measure every installed toolkit in alternating rounds."""
    work, size = prepare(size_name), SIZES[size_name]
    size = replace(size, updates=updates or size.updates, warmup=size.warmup if warmup is None else warmup)
    series = Series("tokens", f"training {size.preset}, {size.pieces:,} pieces", "target tokens/s")
    comparison = Comparison(f"training {size_name}", [series])
    comparison.remarks.append(
        f"{work.data}, batches of {BATCH_TOKENS} tokens with padding, dropout {DROPOUT}, label smoothing "
        f"{LABEL_SMOOTHING}, Adam; target tokens without padding; {size.updates} updates per round after "
        f"{size.warmup} warmup updates"
    )
    note_missing_peers(comparison, environments, [*ENTRIES, *NOT_IMPLEMENTED])
    available = {"saccade", *(peer for peer, found in environments.items() if found.ready)}
    systems = [
        System(entry.name, lambda entry=entry: measure(entry, size_name, size, work, series))
        for entry in ENTRIES
        if entry.peer in available
    ]
    return measure_in_rounds(comparison, systems, rounds, limits=lambda: measure_machine_limits(limit_seconds))


def note_missing_peers(
    comparison: Comparison, environments: Mapping[str, Environment], entries: Sequence[Entry]
) -> None:
    """Record why requested peers cannot run."""
    for entry in entries:
        found = environments.get(entry.peer)
        if found is not None and (entry in NOT_IMPLEMENTED or not found.ready):
            comparison.reasons[entry.name] = found.reason or "installed, but its benchmark is not implemented"


def measure(entry: Entry, size_name: str, size: Size, work: PreparedData, series: Series) -> Measurement:
    """Train once and compute target tokens per second."""
    outcome = train_once(entry, size_name, size, work)
    if outcome.result is None:
        return Measurement(reason=outcome.reason)
    if "flops_per_token" in outcome.result:
        series.flops_per_unit = outcome.result["flops_per_token"]
    series.notes[entry.name] = f"{outcome.result['version']}, {outcome.result['megabytes']:,.0f} MB"
    return Measurement({"tokens": sum(outcome.result["tokens"]) / sum(outcome.result["seconds"])})


def train_once(entry: Entry, size_name: str, size: Size, work: PreparedData) -> Outcome:
    """Run the training job of one entry: seconds and tokens of each update."""
    folder = CACHE / "scratch" / f"{entry.peer}-{entry.task}-{size_name}"
    shutil.rmtree(folder, ignore_errors=True)
    job = make_job(
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
