"""A training run: data, tokenizers, model, loop, validation, checkpoints; from a config to a model folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from saccade.config import merge, read_yaml
from saccade.csrc.library import level
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import collate
from saccade.data.tokenizers.bpe_dropout import bpe_dropout_from_config
from saccade.data.tokenizers.tokenizer_pair import save_tokenizers
from saccade.distributed.group import Group, join_process_group, local_rank
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import find_metric
from saccade.folder import atomic_folder, damaged, json_text, read_json, replace_file, verify
from saccade.inference.device import choose_device
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes
from saccade.models.registry import Choice
from saccade.training.checkpoints.background_saving import CheckpointSaver
from saccade.training.checkpoints.checkpoint import (
    IntactCheckpoint,
    TrainingState,
    find_newest_intact,
    list_checkpoints,
    load_checkpoint,
    mark_damaged,
    step_of,
)
from saccade.training.checkpoints.resume_checks import (
    check_resumable,
    environment_changes,
    numeric_environment,
    result_changing_settings,
)
from saccade.training.checkpoints.start_from_model import (
    StartModel,
    copy_start_weights,
    find_start_folder,
    load_recorded_start,
)
from saccade.training.compute_settings import (
    check_disk,
    choose_precision,
    compile_layers,
    configure_process,
    estimate_disk_bytes,
    make_autocast,
)
from saccade.training.config import RunConfig, check_complete, run_config, with_absolute_paths
from saccade.training.learning_rate_schedule import make_schedule
from saccade.training.loop import NotFiniteError, make_loop
from saccade.training.model_selection import ModelSelection
from saccade.training.objectives.factory import make_objective, make_objective_schedule, objective_metrics
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import preload_optimizer_imports
from saccade.training.preflight.flops import FlopRate
from saccade.training.preflight.forecast import forecast
from saccade.training.runs.data import check_lengths, fit_length_limit, load_data
from saccade.training.runs.directory import RunDirectory, create, remove, rewrite_config
from saccade.training.runs.interruption import SIGNALS, GracefulInterrupt
from saccade.training.runs.lock import run_lock
from saccade.training.runs.tracking import NullTracker, RunTracker, Tracker, format_duration
from saccade.training.stopping import equivalent_updates, fraction_done, limit_reached, planned_updates
from saccade.training.validation import Validation, save_validation_sources

FLOP_EXAMPLES = 16  # examples of the first batch used to count FLOPs: the examples of a batch have similar lengths


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run."""

    directory: RunDirectory
    step: int
    validation: Validation | None  # of the best model
    seconds: float
    interrupted: str | None = None  # name of the signal that stopped the run


class ResumedConfig(NamedTuple):
    """The config a run was started with and the config it continues with."""

    directory: RunDirectory
    before: RunConfig
    config: RunConfig


def train(config: RunConfig) -> RunResult:
    """Train a model, from scratch or from a trained model, into a new run directory; `config` is resolved."""
    config = with_absolute_paths(config)
    device = check_config(config)
    configure_process(config.training)
    group = join_process_group(device)
    assert config.output is not None
    directory = create(Path(config.output), config) if group.rank == 0 else RunDirectory(Path(config.output))
    with lock(directory, group):
        return Run(config, directory, device, group).execute()


def resume(path: Path, overrides: Mapping[str, Any] | None = None) -> RunResult:
    """Resume a run from its newest intact checkpoint; limits may change, data and model may not."""
    return resume_with(read_resumed_config(path, overrides or {}))


def read_resumed_config(path: Path, overrides: Mapping[str, Any]) -> ResumedConfig:
    """Read the saved config of a run and apply overrides."""
    directory = RunDirectory(Path(path))
    if not directory.config.is_file():
        raise SaccadeError("not a run directory", where=str(path), do="name the --output of an earlier run")
    where = str(directory.config)
    saved = read_yaml(directory.config)
    before = run_config(saved, where=where, saved=True)
    config = with_absolute_paths(run_config(merge(saved, overrides), where=where, saved=True))
    return ResumedConfig(directory, before, config.model_copy(update={"output": str(path)}))


def resume_with(resumed: ResumedConfig) -> RunResult:
    """Resume a run with a config that `read_resumed_config` returned."""
    directory, before, config = resumed
    check_resumable(before, config)
    device = check_config(config)
    configure_process(config.training)
    group = join_process_group(device)
    with lock(directory, group):
        if group.rank == 0 and config != before:
            try:
                rewrite_config(directory, config)
            except OSError as error:
                raise SaccadeError(
                    f"cannot be written: {error.strerror}", where=str(directory.config), do="free some space and retry"
                ) from None
        changes = result_changing_settings(before, config)
        return Run(config, directory, device, group, resumed=True, changes=changes).execute()


def lock(directory: RunDirectory, group: Group) -> contextlib.AbstractContextManager[None]:
    """Lock the run directory; rank 0 holds the lock for its group."""
    return run_lock(directory.path) if group.rank == 0 else contextlib.nullcontext()


def check_config(config: RunConfig) -> torch.device:
    """Reject settings that would fail later in the run; return the device."""
    check_complete(config)
    for name in config.training.metrics:
        find_metric(name)
    return choose_device(config.training.device, local_rank())


class Run:
    """One run, from its data to its model folders."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        device: torch.device,
        group: Group,
        *,
        resumed: bool = False,
        changes: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.choice: Choice = config.choice()
        self.directory = directory
        self.group = group
        self.training = config.training
        self.resumed = resumed
        self.changes = changes  # settings changed on resume that change the result
        self.device = device
        self.precision = choose_precision(device, self.training.precision)
        self.environment = numeric_environment(device, group.size, self.precision)
        self.tracker: Tracker = NullTracker()
        if group.rank == 0:
            self.tracker = RunTracker(
                directory,
                objective_metrics=objective_metrics(self.training, self.choice),
                validation_metrics=self.training.metrics,
                log_every=self.training.log_every,
            )

    def execute(self) -> RunResult:
        """Prepare, train and finish; the log names the run directory in every case."""
        self.tracker.say(f"run directory: {self.directory.path}")
        try:
            self.prepare()
        except BaseException:
            self.tracker.close()
            if self.group.rank == 0 and not self.resumed:  # nothing is trained yet: let the user repeat the command
                remove(self.directory)
            raise
        try:
            with self.saver:
                interrupted = self.run_updates()
                self.finish(completed=interrupted is None)
        except BaseException as error:
            with contextlib.suppress(OSError, SaccadeError):  # report the first error, not a later one
                self.tracker.say(f"run directory: {self.directory.path}")
                self.tracker.close()
            if isinstance(error, NotFiniteError):
                raise self.describe_not_finite(error) from None
            raise
        self.tracker.say(f"run directory: {self.directory.path}")
        self.tracker.close()
        progress = self.loop.progress
        return RunResult(self.directory, progress.step, self.selection.best.validation, progress.seconds, interrupted)

    def describe_not_finite(self, error: NotFiniteError) -> SaccadeError:
        """Describe the batch with the NaN or infinity, and the last good checkpoint."""
        kept = list_checkpoints(self.directory.checkpoints)
        corpus, tokenizers = self.data.train, self.data.tokenizers
        texts = ""
        for first in error.examples[:1]:
            pair = tokenizers.source.decode(corpus.source(first)), tokenizers.target.decode(corpus.target(first))
            texts = f" (numbered from 0 after filtering; the first is {pair[0]!r}, {pair[1]!r})"
        return SaccadeError(
            f"stopped at step {self.loop.progress.step + 1}: {error.what}, in the batch of {error.where}{texts}",
            where=str(self.directory.path),
            do=f"last good checkpoint: {kept[-1] if kept else 'none yet'}; lower --training.learning-rate, or inspect "
            "this data",
        )

    def prepare(self) -> None:
        """Build data, model, optimizer and loop; restore a checkpoint if the run is resumed."""
        preload_optimizer_imports()
        for change in self.changes:
            self.tracker.say(f"changed: {change}: results will differ from a run without this change")
        start = None if self.resumed else self.load_start()  # check the start model before the slow work on the data
        self.load_data()
        torch.manual_seed(self.training.seed)
        sizes = vocabulary_sizes(self.data.tokenizers)
        self.model: Any = self.choice.build(sizes).to(self.device)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.tracker.say(f"model: {self.choice.family}, {parameters:,} parameters, on {self.device}")
        if self.device.type == "cpu" and level() is None:
            self.tracker.say("C kernels are not available, training is slower: install a C compiler and reinstall")
        for line in copy_start_weights(self.model, start, self.choice):
            self.tracker.say(line)
        target = self.data.tokenizers.target
        validation_objective = Likelihood(self.training.label_smoothing)  # for every training objective
        dry_run = make_objective(self.training, self.choice, target, dry_run=True)
        order = BatchSampler.from_config(self.data.train, self.config.data, self.training.seed)
        self.tracker.say(f"batches: {order.batches_per_epoch:,} per epoch, {order.padding:.1%} padding")
        self.total_steps = planned_updates(self.training, order.batches_per_epoch)
        check_lengths(self.model, self.data)
        if not self.resumed:
            check_disk(self.directory.path, estimate_disk_bytes(self.model, self.training))
        autocast = make_autocast(self.device, self.precision)
        expected = forecast(
            self.model,
            dry_run,
            self.data.train.statistics,
            batch_tokens=self.config.data.batch_tokens,
            accumulate=self.training.accumulate,
            device=self.device,
            symbols=target.symbols,
            sizes=sizes,
            batches_an_epoch=order.batches_per_epoch,
            total_updates=equivalent_updates(self.training, self.total_steps),
            processes=self.group.size,
            valid=self.data.valid.statistics if self.data.valid else None,
            validation_objective=validation_objective,
            autocast=autocast,
            quick=True,
        )
        for line in (*expected.lines(), *expected.warnings()):
            self.tracker.say(line)
        decoding = fit_length_limit(self.config.decoding, self.data.train)
        self.loop = make_loop(
            self.model,
            make_objective_schedule(self.training, self.choice, target),
            order,
            self.training,
            rate=make_schedule(self.training, self.choice.config.width, self.total_steps),
            symbols=target.symbols,
            device=self.device,
            autocast=autocast,
            group=self.group,
            splitting=bpe_dropout_from_config(self.config.data, self.data.tokenizers),
        )
        first = next(order.rest_of_epoch(EpochPosition()))
        batch = collate(self.data.train, first.indices[:FLOP_EXAMPLES], self.loop.symbols).to(self.device)
        self.flop_rate = FlopRate.measure(self.model, dry_run, batch)
        self.saver = CheckpointSaver(
            self.directory.checkpoints,
            keep=self.training.keep_checkpoints,
            every=self.training.checkpoint_every,
            logs=(self.directory.metrics, self.directory.timing),
        )
        translator = Translator(self.model, self.data.tokenizers, decoding, self.device)
        self.selection = ModelSelection(
            self.directory,
            self.training,
            self.config.data,
            self.choice,
            translator,
            validation_objective,
            self.data.valid,
            self.tracker,
        )
        if self.group.rank == 0 and self.data.valid is not None:
            save_validation_sources(self.directory.path, self.data.valid)
        if self.training.compile:  # after the FLOP count, which does not see the operations of a compiled layer
            self.tracker.say(f"torch.compile: {compile_layers(self.model)} layers, each at its first batch")
        if self.resumed:
            self.restore()

    def load_start(self) -> StartModel | None:
        """Load the start model, if any; its digest is recorded, in case the run must begin again."""
        record = self.directory.start if self.group.rank == 0 else None
        return load_recorded_start(self.training.start, self.choice, record) if self.training.start else None

    def load_data(self) -> None:
        """Load the data from the token cache; a resumed run rejects data that has changed."""
        directory = self.directory
        tokenizers = directory.tokenizers if self.resumed and directory.tokenizers.exists() else None
        if tokenizers is None and self.training.start is not None:
            tokenizers = find_start_folder(self.training.start)
        if tokenizers is not None:
            verify(tokenizers)
        self.data = load_data(self.config.data, self.tracker, tokenizers_folder=tokenizers, group=self.group)
        if self.resumed and directory.data.exists():
            digest = read_json(directory.data).get("digest")
            if not isinstance(digest, str):
                raise damaged(directory.data, "does not contain the digest of the training data")
            if digest != self.data.digest:
                raise SaccadeError(
                    "the data has changed since the run began",
                    where=", ".join(self.config.data.source),
                    do="restore the files, or start a new run with another --output",
                )
        elif self.group.rank == 0:
            with atomic_folder(directory.tokenizers) as folder:
                save_tokenizers(folder, self.data.tokenizers)
            found = {"digest": self.data.digest, "report": self.data.report.to_json()}
            replace_file(directory.data, json_text(found))
        for line in self.data.report.warnings():
            self.tracker.say(line)

    def restore(self) -> None:
        """Continue from the newest intact checkpoint, or from the beginning if there is none."""
        found = find_newest_intact(self.directory.checkpoints) if self.group.rank == 0 else IntactCheckpoint(None, [])
        if found.damaged and found.path is None:
            raise SaccadeError(
                f"all {len(found.damaged)} checkpoints are damaged; the newest: {found.damaged[0][1].what}",
                where=str(found.damaged[0][1].where),
                do="restore them from a backup, or start a new run with another --output",
            )
        for path, error in found.damaged:
            self.tracker.say(f"damaged checkpoint: {error.where}: {error.what}; kept as {mark_damaged(path)}")
        step = int(self.group.all_reduce_numbers([step_of(found.path) if found.path else 0])[0])
        if self.group.rank == 0:
            self.selection.recover()
        if step == 0:
            self.tracker.say("there is no checkpoint yet: the run begins again")
            self.tracker.rewind(0, {})
            for line in copy_start_weights(self.model, self.load_start(), self.choice):
                self.tracker.say(line)
            return
        path = self.directory.checkpoints / f"step-{step}"
        state = load_checkpoint(path, self.model, self.loop.optimizer)
        self.loop.progress = state.progress
        self.tracker.rewind(step, state.logged)
        self.tracker.say(f"resumed from {path}")
        for change in environment_changes(state.environment, self.environment):
            self.tracker.say(f"changed: {change}: results may not be bitwise equal to those of an uninterrupted run")

    def run_updates(self) -> str | None:
        """Update until a limit, early stopping or a signal; return the name of the signal, if any."""
        progress, training = self.loop.progress, self.training
        began = time.perf_counter() - progress.seconds
        self.model.train()
        with GracefulInterrupt() as interruption:
            updates = self.loop.updates()
            reason = self.reason_to_stop(interruption)
            self.tracker.say(f"training begins with step {progress.step + 1:,}" if reason is None else "nothing to do")
            while reason is None:
                update = next(updates)
                progress.flops += self.flop_rate.per_token * update.passes * update.target_tokens
                progress.seconds = time.perf_counter() - began
                self.tracker.update(update, progress, fraction_done(training, progress, self.total_steps))
                if update.step % training.validate_every == 0:
                    if self.group.rank == 0:
                        self.selection.validate_and_select(progress)
                    progress.seconds = time.perf_counter() - began
                reason = self.reason_to_stop(interruption)
                if reason is not None or update.step % training.checkpoint_every == 0:
                    self.save()
                self.saver.check()
            self.tracker.say(f"stopped after {progress.step:,} updates: {reason}")
        return interruption.name if interruption.signal is not None else None

    def reason_to_stop(self, interruption: GracefulInterrupt) -> str | None:
        """Return why the run stops here, or None; all processes return the same decision."""
        reason = limit_reached(self.training, self.loop.progress)
        if interruption.signal is not None:
            reason = f"{interruption.name}; continue with saccade train --resume {self.directory.path}"
        if self.group.size == 1:
            return reason
        flags = [reason is not None, *(interruption.signal == number for number in SIGNALS)]
        stopped, *signalled = self.group.all_reduce_numbers([float(flag) for flag in flags])
        for number, count in zip(SIGNALS, signalled, strict=True):
            if count and interruption.signal is None:  # a signal to one process stops all
                interruption.signal = number
        return reason or ("another process stopped" if stopped else None)

    def save(self) -> None:
        """Save a checkpoint in the background; older ones are removed once it is complete."""
        if self.group.rank == 0:
            state = TrainingState(self.loop.progress, self.tracker.file_sizes(), self.environment)
            self.saver.save(self.model, self.loop.optimizer, state)

    def finish(self, *, completed: bool) -> None:
        """Write the model folders and log a summary of the run."""
        if self.group.rank != 0:
            return
        progress = self.loop.progress
        self.saver.wait()
        self.selection.finish(progress, completed=completed)
        self.tracker.say(
            f"trained {progress.step:,} updates, {progress.target_tokens:,} target tokens, "
            f"{progress.flops:.2e} FLOPs in {format_duration(progress.seconds)}"
        )
