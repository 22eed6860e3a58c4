"""A training run, from its resolved config to a model folder: prepare, update, validate, save."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from saccade.arguments import check_call, check_mapping, path_of
from saccade.config import flatten
from saccade.distributed.group import Group, join_process_group, local_rank
from saccade.errors import SaccadeError, not_written
from saccade.models.registry import Choice
from saccade.training.checkpoints.checkpoint import TrainingState, list_checkpoints
from saccade.training.checkpoints.resume_checks import check_resumable, result_changing_settings
from saccade.training.compute_settings import configure_process, resolve_compute
from saccade.training.config import RunConfig
from saccade.training.config_resolution import ResumedConfig, check_complete, resolve_resumed
from saccade.training.gradient_accumulation import NotFiniteError
from saccade.training.objectives.factory import objective_metrics
from saccade.training.runs.data_files import check_data_files, moved_data_hint
from saccade.training.runs.directory import RunDirectory, create, remove, rewrite_config
from saccade.training.runs.experiment_trackers import check_installed
from saccade.training.runs.interruption import GracefulInterrupt
from saccade.training.runs.lock import run_lock
from saccade.training.runs.preparation import PreparedRun, RunContext, prepare
from saccade.training.runs.resumable_directory import check_checkpoints_exist, check_data_record
from saccade.training.runs.tracking import NullTracker, RunTracker, Tracker
from saccade.training.stopping import fraction_done, limit_reached
from saccade.training.units import format_duration
from saccade.training.validation import Validation
from saccade.workers.stop_signals import STOP_SIGNALS


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    directory: RunDirectory
    step: int
    validation: Validation | None  # of the best model
    seconds: float
    interrupted: str | None = None  # name of the signal that stopped the run


def train(config: RunConfig) -> RunResult:
    """Train a model, from scratch or from a trained model, into a new run directory; `config` is resolved."""
    check_complete(config)
    check_installed(config.training.log_to)
    compute = resolve_compute(config.training, local_rank())
    configure_process(config.training)
    group = join_process_group(compute.device)
    assert config.output is not None
    path = Path(config.output)
    directory = create(path, config) if group.rank == 0 else RunDirectory(path)
    with lock(directory, group):
        choice = config.choice()
        tracker = make_tracker(config, choice, directory, group)
        return execute(RunContext(config, choice, directory, compute, group, tracker))


@check_call
def resume(path: str | PathLike[str], overrides: Mapping[str, Any] | None = None) -> RunResult:
    """Resume a run from its newest intact checkpoint; limits may change, data and model may not."""
    if overrides is not None:
        check_mapping(overrides, "overrides", hint='give a dict such as {"training": {"max_minutes": 20}}')
    return continue_run(resolve_resumed(path_of(path, "path"), overrides))


def continue_run(resumed: ResumedConfig) -> RunResult:
    """Resume a run with its resolved config."""
    directory, before, config = resumed
    check_resumable(before, config)
    check_complete(config)
    check_installed(config.training.log_to)
    check_checkpoints_exist(directory, before.training.checkpoint_every)
    check_data_record(directory)
    check_data_files(config.data, moved_data_hint(directory.path, config.data))
    compute = resolve_compute(config.training, local_rank())
    configure_process(config.training)
    group = join_process_group(compute.device)
    with lock(directory, group):
        choice = config.choice()
        tracker = make_tracker(config, choice, directory, group)
        changes = tuple(result_changing_settings(before, config))
        resumed_run = RunContext(config, choice, directory, compute, group, tracker, resumed=True, changes=changes)
        return execute(resumed_run, config_changed=config != before)


def save_changed_config(directory: RunDirectory, config: RunConfig) -> None:
    """Replace the config of a resumed run."""
    try:
        rewrite_config(directory, config)
    except OSError as error:
        raise not_written(directory.config, error) from None


def lock(directory: RunDirectory, group: Group) -> contextlib.AbstractContextManager[None]:
    """Lock the run directory; rank 0 holds the lock for its group."""
    return run_lock(directory.path) if group.rank == 0 else contextlib.nullcontext()


def make_tracker(config: RunConfig, choice: Choice, directory: RunDirectory, group: Group) -> Tracker:
    """Build the tracker of this process; only rank 0 writes logs."""
    if group.rank != 0:
        return NullTracker()
    return RunTracker(
        directory,
        objective_metrics=objective_metrics(config.training, choice),
        validation_metrics=config.training.metrics,
        log_every=config.training.log_every,
        log_to=config.training.log_to,
    )


def execute(context: RunContext, *, config_changed: bool = False) -> RunResult:
    """Prepare, train and finish; the log names the run directory in every case.

    A changed config is saved when the run is prepared, so that a resume that fails changes nothing.
    """
    directory, tracker = context.directory, context.tracker
    tracker.log(f"run directory: {directory.path}")
    try:
        run = prepare(context)
        if config_changed and context.group.rank == 0:
            save_changed_config(directory, context.config)
    except BaseException:
        tracker.close("failed")
        if context.group.rank == 0 and not context.resumed:  # nothing is trained: the user can repeat the command
            remove(directory)
        raise
    try:
        tracker.begin(flatten(context.config.model_dump(mode="json")))
        with run.saver:
            with GracefulInterrupt() as interruption:
                run_updates(run, interruption)
                run.saver.wait()
                interrupted = interruption.name
                if interrupted is not None:  # within the block, because a closed terminal sends SIGHUP twice
                    finish(run, completed=False)
            if interrupted is None:
                finish(run, completed=True)
    except BaseException as error:
        with contextlib.suppress(OSError, SaccadeError):  # report the first error, not a later one
            tracker.log(f"run directory: {directory.path}")
            tracker.close("failed")
        if isinstance(error, NotFiniteError):
            raise describe_not_finite(run, error) from None
        raise
    tracker.log(f"run directory: {directory.path}")
    tracker.close("finished" if interrupted is None else "interrupted")
    progress = run.loop.progress
    return RunResult(directory, progress.step, run.selection.best.validation, progress.seconds, interrupted)


def run_updates(run: PreparedRun, interruption: GracefulInterrupt) -> None:
    """Update until a limit, early stopping or a signal; the last checkpoint may still be being written."""
    context, loop, progress = run.context, run.loop, run.loop.progress
    training, tracker = context.config.training, context.tracker
    began = time.perf_counter() - progress.seconds
    loop.model.train()
    updates = loop.updates()
    reason = reason_to_stop(run, interruption)
    tracker.log(f"training begins with step {progress.step + 1:,}" if reason is None else "nothing to do")
    while reason is None:
        update = next(updates)
        progress.flops += run.flop_rate.per_token * update.passes * update.target_tokens
        progress.seconds = time.perf_counter() - began
        tracker.update(update, progress, fraction_done(training, progress, run.planned_updates))
        if update.step % training.validate_every == 0:
            if context.group.rank == 0:
                run.selection.validate_and_select(progress)
            progress.seconds = time.perf_counter() - began
        reason = reason_to_stop(run, interruption)
        if reason is not None or update.step % training.checkpoint_every == 0:
            save(run)
        run.saver.check()
    tracker.log(f"stopped after {progress.step:,} updates: {reason}")


def reason_to_stop(run: PreparedRun, interruption: GracefulInterrupt) -> str | None:
    """Return why the run stops here, or None; all processes return the same decision."""
    group = run.context.group
    reason = limit_reached(run.context.config.training, run.loop.progress)
    if interruption.name is not None:
        reason = f"{interruption.name}; continue with saccade train --resume {run.context.directory.path}"
    if group.size == 1:
        return reason
    flags = [reason is not None, *(interruption.signal == number for number in STOP_SIGNALS)]
    stopped, *signalled = group.all_reduce_numbers([float(flag) for flag in flags])
    for number, count in zip(STOP_SIGNALS, signalled, strict=True):
        if count and interruption.signal is None:  # a signal to one process stops all
            interruption.signal = number
    return reason or ("another process stopped" if stopped else None)


def save(run: PreparedRun) -> None:
    """Save a checkpoint in the background; older ones are removed once it is complete."""
    if run.context.group.rank == 0:
        state = TrainingState(run.loop.progress, run.context.tracker.file_sizes(), run.environment)
        run.saver.save(run.loop.model, run.loop.optimizer, state)


def finish(run: PreparedRun, *, completed: bool) -> None:
    """Write the model folders and log a summary of the run."""
    if run.context.group.rank != 0:
        return
    progress = run.loop.progress
    run.saver.wait()
    run.selection.finish(progress, completed=completed)
    run.context.tracker.log(
        f"trained {progress.step:,} updates, {progress.target_tokens:,} target tokens, "
        f"{progress.flops:.2e} FLOPs in {format_duration(progress.seconds)}"
    )


def describe_not_finite(run: PreparedRun, error: NotFiniteError) -> SaccadeError:
    """Describe the batch with the NaN or infinity, and the last good checkpoint."""
    directory = run.context.directory
    kept = list_checkpoints(directory.checkpoints)
    corpus, tokenizers = run.data.train, run.data.tokenizers
    texts = ""
    for first in error.examples[:1]:
        pair = tokenizers.source.decode(corpus.source(first)), tokenizers.target.decode(corpus.target(first))
        texts = f" (numbered from 0 after filtering; the first is {pair[0]!r}, {pair[1]!r})"
    return SaccadeError(
        f"stopped at step {run.loop.progress.step + 1}: {error.what}, in the batch of {error.where}{texts}",
        where=str(directory.path),
        hint=f"last good checkpoint: {kept[-1] if kept else 'none yet'}; lower --training.learning-rate, or inspect "
        "this data",
    )
