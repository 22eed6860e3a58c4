"""A whole run: data, tokenizers, model, loop, validation, checkpoints; from a config to a model folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade.config import merge, read_yaml
from saccade.csrc.library import level
from saccade.data.sampling.batch_sampler import Order, Place
from saccade.data.sampling.batches import collate
from saccade.data.tokenizers.bpe_dropout import splitting_of
from saccade.data.tokenizers.tokenizer_pair import save_tokenizers
from saccade.distributed.group import Group, join, local_rank
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import find_metric
from saccade.folder import damaged, json_text, read_json, replace_file, verify, whole_folder
from saccade.inference.device import choose_device
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes
from saccade.models.registry import Choice
from saccade.training.assembly import make_loop
from saccade.training.checkpoints.background_saving import Saver
from saccade.training.checkpoints.checkpoint import (
    State,
    Whole,
    checkpoints,
    load_checkpoint,
    newest_whole,
    set_aside,
    step_of,
)
from saccade.training.checkpoints.exact_resume import arithmetic, check_resumable, environment_changes, shaping_changes
from saccade.training.checkpoints.start_from_model import Start, find_start, put_start, start_folder
from saccade.training.compute_settings import (
    autocast_for,
    check_disk,
    choose_precision,
    compile_layers,
    disk_needed,
    prepare_machine,
)
from saccade.training.config import RunConfig, check_complete, run_config, with_absolute_paths
from saccade.training.interruption import SIGNALS, Interruption
from saccade.training.learning_rate_schedule import rate_of
from saccade.training.loop import NotFiniteError
from saccade.training.model_selection import Selection
from saccade.training.objectives.factory import make_objective, objective_at, sums_of_objective
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import expect_optimizer
from saccade.training.preflight.flops import FlopRate
from saccade.training.preflight.forecast import forecast
from saccade.training.run_data import check_lengths, fit_length_limit, load_data
from saccade.training.run_directory import RunDirectory, create, remove, rewrite_config
from saccade.training.run_lock import run_lock
from saccade.training.run_tracking import RunTracker, SilentTracker, Tracker, person_time
from saccade.training.stopping import limit_reached, planned_updates, share_done, work_of
from saccade.training.validation import Validation, note_sources

COUNTED = 16  # examples of the first batch whose operations are counted: those of one batch are all about as long


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    directory: RunDirectory
    step: int
    validation: Validation | None  # of the best model
    seconds: float
    interrupted: str | None = None  # the signal that ended it


def train(config: RunConfig) -> RunResult:
    """Train a model, from scratch or from another one's weights, into a new run directory."""
    config = with_absolute_paths(run_config(config.model_dump(exclude_unset=True), where="config"))
    device = check(config)
    prepare_machine(config.training)
    group = join(device)
    assert config.output is not None
    directory = create(Path(config.output), config) if group.rank == 0 else RunDirectory(Path(config.output))
    with lock(directory, group):
        return Run(config, directory, device, group).go()


def resume(path: Path, overrides: dict[str, Any] | None = None) -> RunResult:
    """Go on with a run from its newest whole checkpoint; limits and the like may change, data and model may not."""
    directory = RunDirectory(Path(path))
    if not directory.config.is_file():
        raise SaccadeError("is no run directory", where=str(path), do="name the --output of an earlier run")
    saved = read_yaml(directory.config)
    before = run_config(saved, where=str(directory.config), saved=True)
    changed = merge(saved, overrides or {})
    config = with_absolute_paths(run_config(changed, where=str(directory.config), saved=True))
    check_resumable(before, config)
    config = config.model_copy(update={"output": str(path)})
    device = check(config)
    prepare_machine(config.training)
    group = join(device)
    with lock(directory, group):
        if group.rank == 0 and config != before:
            try:
                rewrite_config(directory, config)
            except OSError as error:
                raise SaccadeError(
                    f"cannot be written: {error.strerror}", where=str(directory.config), do="make room, and try again"
                ) from None
        return Run(config, directory, device, group, resumed=True, changes=shaping_changes(before, config)).go()


def lock(directory: RunDirectory, group: Group) -> contextlib.AbstractContextManager[None]:
    """The first process holds the run for all of its group."""
    return run_lock(directory.path) if group.rank == 0 else contextlib.nullcontext()


def check(config: RunConfig) -> torch.device:
    """Refuse at once what would fail later; returns the device to compute on."""
    check_complete(config)
    for name in config.training.metrics:
        find_metric(name)
    return choose_device(config.training.device, local_rank())


class Run:
    """One run from its data to its model folders."""

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
        self.changes = changes  # settings that make the rest another one than it would have been
        self.device = device
        self.precision = choose_precision(device, self.training.precision)
        self.environment = arithmetic(device, group.size, self.precision)
        self.tracker: Tracker = SilentTracker()
        if group.rank == 0:
            self.tracker = RunTracker(
                directory,
                sums=sums_of_objective(self.training, self.choice),
                metrics=self.training.metrics,
                log_every=self.training.log_every,
            )

    def go(self) -> RunResult:
        """Do everything; whatever happens, say where the run lies."""
        self.tracker.say(f"run directory: {self.directory.path}")
        try:
            self.prepare()
        except BaseException:
            self.tracker.close()
            if self.group.rank == 0 and not self.resumed:  # nothing is learnt yet: the same command may come again
                remove(self.directory)
            raise
        try:
            with self.saver:
                interrupted = self.learn()
                self.finish(whole=interrupted is None)
        except BaseException as error:
            with contextlib.suppress(OSError, SaccadeError):  # the first fault is the one to tell
                self.tracker.say(f"run directory: {self.directory.path}")
                self.tracker.close()
            if isinstance(error, NotFiniteError):
                raise self.not_finite(error) from None
            raise
        self.tracker.say(f"run directory: {self.directory.path}")
        self.tracker.close()
        progress = self.loop.progress
        return RunResult(self.directory, progress.step, self.selection.best.validation, progress.seconds, interrupted)

    def not_finite(self, error: NotFiniteError) -> SaccadeError:
        """The batch in words, and what is left to go on from."""
        kept = checkpoints(self.directory.checkpoints)
        corpus, tokenizers = self.data.train, self.data.tokenizers
        texts = ""
        for first in error.examples[:1]:
            pair = tokenizers.source.decode(corpus.source(first)), tokenizers.target.decode(corpus.target(first))
            texts = f" (counted from 0 after the filters; the first is {pair[0]!r}, {pair[1]!r})"
        return SaccadeError(
            f"stopped at step {self.loop.progress.step + 1}: {error.what}, in the batch of {error.where}{texts}",
            where=str(self.directory.path),
            do=f"last good checkpoint: {kept[-1] if kept else 'none yet'}; lower --training.learning-rate, or look at "
            "this data",
        )

    def prepare(self) -> None:
        """Data, model, optimizer, loop; from a checkpoint if the run is resumed."""
        expect_optimizer()
        for words in self.changes:
            self.tracker.say(f"changed: {words}: from here on this is not the run that it would have been")
        start = None if self.resumed else self.find_start()  # refused before anything is made of the data
        self.load_data()
        torch.manual_seed(self.training.seed)
        sizes = vocabulary_sizes(self.data.tokenizers)
        self.model: Any = self.choice.build(sizes).to(self.device)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.tracker.say(f"model: {self.choice.family}, {parameters:,} parameters, on {self.device}")
        if self.device.type == "cpu" and level() is None:
            self.tracker.say("without the kernels of Saccade, so more slowly: install a C compiler, then Saccade again")
        for line in put_start(self.model, start, self.choice):
            self.tracker.say(line)
        target = self.data.tokenizers.target
        judge = Likelihood(self.training.label_smoothing)  # whatever the model is trained with
        rehearsed = make_objective(self.training, self.choice, target, rehearsed=True)
        order = Order.of(self.data.train, self.config.data, self.training.seed)
        self.tracker.say(f"batches: {order.batches_an_epoch:,} an epoch, {order.padding:.1%} padding")
        self.total_steps = planned_updates(self.training, order.batches_an_epoch)
        check_lengths(self.model, self.data)
        if not self.resumed:
            check_disk(self.directory.path, disk_needed(self.model, self.training))
        autocast = autocast_for(self.device, self.precision)
        expected = forecast(
            self.model,
            rehearsed,
            self.data.train.statistics,
            batch_tokens=self.config.data.batch_tokens,
            accumulate=self.training.accumulate,
            device=self.device,
            symbols=target.symbols,
            sizes=sizes,
            batches_an_epoch=order.batches_an_epoch,
            total_updates=work_of(self.training, self.total_steps),
            processes=self.group.size,
            valid=self.data.valid.statistics if self.data.valid else None,
            judge=judge,
            autocast=autocast,
            quick=True,
        )
        for line in (*expected.lines(), *expected.attention()):
            self.tracker.say(line)
        decoding = fit_length_limit(self.config.decoding, self.data.train)
        self.loop = make_loop(
            self.model,
            objective_at(self.training, self.choice, target),
            order,
            self.training,
            rate=rate_of(self.training, self.choice.config.width, self.total_steps),
            symbols=target.symbols,
            device=self.device,
            autocast=autocast,
            group=self.group,
            splitting=splitting_of(self.config.data, self.data.tokenizers),
        )
        first = next(order.rest_of_epoch(Place()))
        batch = collate(self.data.train, first.rows[:COUNTED], self.loop.symbols).to(self.device)
        self.flop_rate = FlopRate.measure(self.model, rehearsed, batch)
        self.saver = Saver(
            self.directory.checkpoints,
            keep=self.training.keep_checkpoints,
            every=self.training.checkpoint_every,
            logs=(self.directory.metrics, self.directory.timing),
        )
        translator = Translator(self.model, self.data.tokenizers, decoding, self.device)
        self.selection = Selection(
            self.directory, self.config, self.choice, translator, judge, self.data.valid, self.tracker
        )
        if self.group.rank == 0 and self.data.valid is not None:
            note_sources(self.directory.path, self.data.valid)
        if self.training.compile:  # after all that counts operations: it would not see those of a compiled layer
            self.tracker.say(f"compiled: {compile_layers(self.model)} layers, each at its first batch")
        if self.resumed:
            self.restore()

    def find_start(self) -> Start | None:
        """The model to start from, if the settings name one; its digest is noted, for a run that must begin again."""
        note = self.directory.start if self.group.rank == 0 else None
        return find_start(self.training.start, self.choice, note) if self.training.start else None

    def load_data(self) -> None:
        """Read or find the data; a resumed run refuses other data than it began with."""
        places = self.directory
        kept = places.tokenizers if self.resumed and places.tokenizers.exists() else None
        if kept is None and self.training.start is not None:
            kept = start_folder(self.training.start)
        if kept is not None:
            verify(kept)
        self.data = load_data(self.config.data, self.tracker, tokenizers_folder=kept, group=self.group)
        if self.resumed and places.data.exists():
            digest = read_json(places.data).get("digest")
            if not isinstance(digest, str):
                raise damaged(places.data, "does not say which data the run began with")
            if digest != self.data.digest:
                raise SaccadeError(
                    "the data is not what it was when the run began",
                    where=", ".join(self.config.data.source),
                    do="restore the files, or start a new run with another --output",
                )
        elif self.group.rank == 0:
            with whole_folder(places.tokenizers) as folder:
                save_tokenizers(folder, self.data.tokenizers)
            found = {"digest": self.data.digest, "report": self.data.report.to_json()}
            replace_file(places.data, json_text(found))
        for line in self.data.report.attention():
            self.tracker.say(line)

    def restore(self) -> None:
        """Continue from the newest whole checkpoint, or from the beginning if there is none."""
        found = newest_whole(self.directory.checkpoints) if self.group.rank == 0 else Whole(None, [])
        if found.damaged and found.path is None:
            raise SaccadeError(
                f"none of its {len(found.damaged)} checkpoints can be used; the newest: {found.damaged[0][1].what}",
                where=str(found.damaged[0][1].where),
                do="copy them again from where they are whole, or start a new run with another --output",
            )
        for path, fault in found.damaged:
            self.tracker.say(f"damaged checkpoint: {fault.where}: {fault.what}; kept as {set_aside(path)}")
        step = int(self.group.totals([step_of(found.path) if found.path else 0])[0])
        if self.group.rank == 0:
            self.selection.recover()
        if step == 0:
            self.tracker.say("there is no checkpoint yet: the run begins again")
            self.tracker.rewind(0, {})
            for line in put_start(self.model, self.find_start(), self.choice):
                self.tracker.say(line)
            return
        path = self.directory.checkpoints / f"step-{step}"
        state = load_checkpoint(path, self.model, self.loop.optimizer)
        self.loop.progress = state.progress
        self.tracker.rewind(step, state.logged)
        self.tracker.say(f"resumed from {path}")
        for words in environment_changes(state.environment, self.environment):
            self.tracker.say(f"changed: {words}: from here on the last bits may differ from an uninterrupted run")

    def learn(self) -> str | None:
        """Update until a limit, early stopping or a signal; returns the signal's name."""
        progress, training = self.loop.progress, self.training
        began = time.perf_counter() - progress.seconds
        self.model.train()
        with Interruption() as interruption:
            updates = self.loop.updates()
            reason = self.reason_to_stop(interruption)
            self.tracker.say(f"training begins with step {progress.step + 1:,}" if reason is None else "nothing to do")
            while reason is None:
                update = next(updates)
                progress.flops += self.flop_rate.per_token * update.passes * update.target_tokens
                progress.seconds = time.perf_counter() - began
                self.tracker.update(update, progress, share_done(training, progress, self.total_steps))
                if update.step % training.validate_every == 0:
                    if self.group.rank == 0:
                        self.selection.judge(progress)
                    progress.seconds = time.perf_counter() - began
                reason = self.reason_to_stop(interruption)
                if reason is not None or update.step % training.checkpoint_every == 0:
                    self.save()
                self.saver.check()
            self.tracker.say(f"stopped after {progress.step:,} updates: {reason}")
        return interruption.name if interruption.signal is not None else None

    def reason_to_stop(self, interruption: Interruption) -> str | None:
        """Why the run ends here, if it does; all processes agree."""
        reason = limit_reached(self.training, self.loop.progress)
        if interruption.signal is not None:
            reason = f"{interruption.name}; go on with saccade train --resume {self.directory.path}"
        if self.group.size == 1:
            return reason
        flags = [reason is not None, *(interruption.signal == number for number in SIGNALS)]
        stopped, *signalled = self.group.totals([float(flag) for flag in flags])
        for number, count in zip(SIGNALS, signalled, strict=True):
            if count and interruption.signal is None:  # one process was told to stop, and so all were
                interruption.signal = number
        return reason or ("another process stopped" if stopped else None)

    def save(self) -> None:
        """A checkpoint; older ones go when it is whole."""
        if self.group.rank == 0:
            state = State(self.loop.progress, self.tracker.positions(), self.environment)
            self.saver.save(self.model, self.loop.optimizer, state)

    def finish(self, *, whole: bool) -> None:
        """The models, and the account of the run."""
        if self.group.rank != 0:
            return
        progress = self.loop.progress
        self.saver.wait()
        self.selection.finish(progress, whole=whole)
        self.tracker.say(
            f"trained {progress.step:,} updates, {progress.target_tokens:,} target tokens, "
            f"{progress.flops:.2e} FLOPs in {person_time(progress.seconds)}"
        )
