"""Preparation of a run: data, model, forecast, loop, validation, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from saccade import messages
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import collate
from saccade.data.tokenizers.bpe_dropout import bpe_dropout_from_config
from saccade.data.tokenizers.tokenizer_pair import save_tokenizers
from saccade.distributed.group import Group
from saccade.errors import SaccadeError
from saccade.folder import atomic_folder, damaged, json_text, read_json, replace_file, verify
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes
from saccade.models.registry import Choice
from saccade.ops.dispatch import kernel_level
from saccade.training.checkpoints.background_saving import CheckpointSaver
from saccade.training.checkpoints.checkpoint import (
    IntactCheckpoint,
    find_newest_intact,
    load_checkpoint,
    mark_damaged,
    step_of,
)
from saccade.training.checkpoints.resume_checks import environment_changes, numeric_environment
from saccade.training.checkpoints.start_from_model import StartModel, copy_start_weights, load_recorded_start
from saccade.training.checkpoints.start_settings import find_start_folder
from saccade.training.compute_settings import ComputeSettings, compile_layers
from saccade.training.config import RunConfig
from saccade.training.learning_rate_schedule import make_schedule
from saccade.training.loop import Loop, make_loop
from saccade.training.model_selection import ModelSelection
from saccade.training.objectives.factory import make_objective, make_objective_schedule
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.objective import Objective
from saccade.training.optimizers import preload_optimizer_imports
from saccade.training.preflight.data_findings import run_findings
from saccade.training.preflight.disk_space import check_disk, estimate_disk_bytes
from saccade.training.preflight.flops import FlopRate
from saccade.training.preflight.memory_and_time_forecast import forecast
from saccade.training.runs.data import RunData, check_lengths, fit_length_limit, fit_source_limit, load_data
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.resumable_directory import new_start
from saccade.training.runs.tracking import Tracker
from saccade.training.stopping import equivalent_updates, planned_updates
from saccade.training.validation import save_validation_sources

FLOP_EXAMPLES = 16  # examples of the first batch used to count FLOPs: the examples of a batch have similar lengths


@dataclass(frozen=True)
class RunContext:
    """A run before it is prepared: its config, its directory, and the process that executes it."""

    config: RunConfig
    choice: Choice
    directory: RunDirectory
    compute: ComputeSettings
    group: Group
    tracker: Tracker
    resumed: bool = False
    changes: tuple[str, ...] = ()  # settings changed on resume that change the result

    def log(self, lines: Sequence[str]) -> None:
        """Log several messages."""
        for line in lines:
            self.tracker.log(line)


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready for its next update."""

    context: RunContext
    environment: dict[str, str]  # versions and hardware that bitwise equality depends on
    data: RunData
    loop: Loop
    saver: CheckpointSaver
    selection: ModelSelection
    flop_rate: FlopRate
    planned_updates: int | None  # None if unknown


def prepare(context: RunContext) -> PreparedRun:
    """Build data, model, optimizer and loop; restore a checkpoint if the run is resumed."""
    config, directory, tracker = context.config, context.directory, context.tracker
    training, device = config.training, context.compute.device
    preload_optimizer_imports()
    for change in context.changes:
        tracker.warn(f"changed: {change}: results will differ from a run without this change")
    start = None if context.resumed else load_start(context)  # check the start model before the slow work on the data
    data = load_run_data(context)
    model = build_model(context, data)
    context.log(copy_start_weights(model, start, context.choice))
    target = data.tokenizers.target
    validation_objective = Likelihood(training.label_smoothing)  # for every training objective
    dry_run = make_objective(training, context.choice, target, dry_run=True)
    sampler = BatchSampler.from_config(data.train, config.data, training.seed)
    tracker.log(f"batches: {sampler.batches_per_epoch:,} per epoch, {sampler.padding:.1%} padding")
    updates = planned_updates(training, sampler.batches_per_epoch)
    check_lengths(model, data)
    if not context.resumed:
        check_disk(directory.path, estimate_disk_bytes(model, training))
    log_forecast(context, model, data, sampler, dry_run, validation_objective, updates)
    loop = make_loop(
        model,
        make_objective_schedule(training, context.choice, target),
        sampler,
        training,
        learning_rate=make_schedule(training, context.choice.config.width, updates),
        symbols=target.symbols,
        device=device,
        autocast=context.compute.autocast,
        group=context.group,
        bpe_dropout=bpe_dropout_from_config(config.data, data.tokenizers),
    )
    first = next(sampler.rest_of_epoch(EpochPosition()))
    batch = collate(data.train, first.indices[:FLOP_EXAMPLES], loop.symbols).to(device)
    flop_rate = FlopRate.measure(model, dry_run, batch)
    decoding = fit_source_limit(fit_length_limit(config.decoding, data.train), data.train)
    environment = numeric_environment(device, context.group.size, context.compute.precision)
    if context.group.rank == 0:
        messages.detail("environment: " + ", ".join(f"{name} {value}" for name, value in environment.items()))
    run = PreparedRun(
        context,
        environment,
        data,
        loop,
        CheckpointSaver(
            directory.checkpoints,
            keep=training.keep_checkpoints,
            every=training.checkpoint_every,
            logs=(directory.metrics, directory.timing),
        ),
        ModelSelection(
            directory,
            training,
            config.data,
            context.choice,
            Translator(model, data.tokenizers, decoding, device),
            validation_objective,
            data.valid,
            tracker,
        ),
        flop_rate,
        updates,
    )
    if context.group.rank == 0 and data.valid is not None:
        save_validation_sources(directory.path, data.valid)
    if training.compile:  # after the FLOP count, which does not see the operations of a compiled layer
        tracker.log(f"torch.compile: {compile_layers(model)} layers, each at its first batch")
    if context.resumed:
        restore(run)
    return run


def load_start(context: RunContext) -> StartModel | None:
    """Load the start model, if any; its digest is recorded, in case the run must begin again."""
    path = context.config.training.start
    record = context.directory.start if context.group.rank == 0 else None
    return load_recorded_start(path, context.choice, record) if path else None


def load_run_data(context: RunContext) -> RunData:
    """Load the data from the token cache; a resumed run rejects data that has changed."""
    config, directory = context.config, context.directory
    folder = directory.tokenizers if context.resumed and directory.tokenizers.exists() else None
    if folder is None and config.training.start is not None:
        folder = find_start_folder(config.training.start)
    if folder is not None:
        verify(folder)
    data = load_data(config.data, context.tracker, tokenizers_folder=folder, group=context.group)
    if context.resumed and directory.data.exists():
        digest = read_json(directory.data).get("digest")
        if not isinstance(digest, str):
            raise damaged(directory.data, "does not contain the digest of the training data")
        if digest != data.digest:
            raise SaccadeError(
                "the data has changed since the run began",
                where=", ".join(config.data.source),
                hint="restore the files, or start a new run with another --output",
            )
    elif context.group.rank == 0:
        with atomic_folder(directory.tokenizers) as staging:
            save_tokenizers(staging, data.tokenizers)
        replace_file(directory.data, json_text({"digest": data.digest, "report": data.report.to_json()}))
    for finding in run_findings(data):
        if finding.severity != "information":
            context.tracker.warn(finding.one_line, severity=finding.severity)
    return data


def build_model(context: RunContext, data: RunData) -> Any:
    """Build the model with weights that depend on the seed alone."""
    device = context.compute.device
    torch.manual_seed(context.config.training.seed)
    model = context.choice.build(vocabulary_sizes(data.tokenizers)).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    context.tracker.log(f"model: {context.choice.family}, {parameters:,} parameters, on {device}")
    if device.type == "cpu" and kernel_level() is None:
        context.tracker.log("C kernels are not available, training is slower: install a C compiler and reinstall")
    return model


def log_forecast(
    context: RunContext,
    model: nn.Module,
    data: RunData,
    sampler: BatchSampler,
    objective: Objective,
    validation_objective: Objective,
    updates: int | None,
) -> None:
    """Run the longest batch once, and log the memory and time that the run is expected to need."""
    config = context.config
    expected = forecast(
        model,
        objective,
        data.train.statistics,
        batch_tokens=config.data.batch_tokens,
        accumulate=config.training.accumulate,
        device=context.compute.device,
        symbols=data.tokenizers.target.symbols,
        sizes=vocabulary_sizes(data.tokenizers),
        batches_an_epoch=sampler.batches_per_epoch,
        total_updates=equivalent_updates(config.training, updates),
        processes=context.group.size,
        valid=data.valid.statistics if data.valid else None,
        validation_objective=validation_objective,
        autocast=context.compute.autocast,
        quick=True,
    )
    context.log(expected.lines())
    for warning in expected.warnings():
        context.tracker.warn(warning)


def restore(run: PreparedRun) -> None:
    """Restore the newest intact checkpoint; without checkpoints the run begins again."""
    context, loop = run.context, run.loop
    directory, tracker, group = context.directory, context.tracker, context.group
    found = find_newest_intact(directory.checkpoints) if group.rank == 0 else IntactCheckpoint(None, [])
    if found.damaged and found.path is None:
        raise SaccadeError(
            f"all {len(found.damaged)} checkpoints are damaged; the newest: {found.damaged[0][1].what}",
            where=str(found.damaged[0][1].where),
            hint=f"restore them from a backup, or {new_start(directory)}",
        )
    for path, error in found.damaged:
        tracker.warn(f"damaged checkpoint: {error.where}: {error.what}; kept as {mark_damaged(path)}")
    step = int(group.all_reduce_numbers([step_of(found.path) if found.path else 0])[0])
    if group.rank == 0:
        run.selection.recover()
    if step == 0:
        tracker.log("there is no checkpoint yet: the run begins again")
        tracker.rewind(0, {})
        context.log(copy_start_weights(loop.model, load_start(context), context.choice))
        return
    path = directory.checkpoints / f"step-{step}"
    state = load_checkpoint(path, loop.model, loop.optimizer)
    loop.progress = state.progress
    tracker.rewind(step, state.logged)
    tracker.log(f"resumed from {path}")
    for change in environment_changes(state.environment, run.environment):
        tracker.warn(f"changed: {change}: results may not be bitwise equal to those of an uninterrupted run")
