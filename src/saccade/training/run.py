"""A whole run: data, tokenizers, model, loop, validation, checkpoints; from a config to a model folder."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saccade.checkpoint import (
    WEIGHTS,
    ModelFolder,
    load_weights,
    put_weights,
    save_model_folder,
    save_tokenizers,
    vocabulary_sizes,
)
from saccade.config import merge, read_yaml, write_yaml
from saccade.data.batches import collate, plan_epoch
from saccade.distributed.group import Group, join, local_rank
from saccade.errors import SaccadeError
from saccade.evaluation.scores import find_metric
from saccade.inference.device import choose_device
from saccade.inference.translator import Translator
from saccade.models.registry import Choice
from saccade.training.allocator import keep_memory
from saccade.training.averaging import average_weights
from saccade.training.card import model_card
from saccade.training.config import RunConfig, TrainingConfig, check_complete, run_config
from saccade.training.data import check_lengths, fit_length_limit, load_data
from saccade.training.directory import RunDirectory, create
from saccade.training.flops import FlopRate
from saccade.training.interruption import Interruption
from saccade.training.loop import Loop, NotFiniteError
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizer import make_optimizer
from saccade.training.schedule import learning_rate, paper_peak
from saccade.training.state import checkpoints, load_checkpoint, prune, save_checkpoint
from saccade.training.tracking import RunTracker, SilentTracker, Tracker, drop_rows_after, person_time
from saccade.training.validation import Validation, validate

DEFAULT_EPOCHS = 30


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    directory: RunDirectory
    step: int
    validation: Validation | None  # of the best model
    seconds: float
    interrupted: str | None = None  # the signal that ended it


def train(config: RunConfig) -> RunResult:
    """Train a model from scratch into a new run directory."""
    config = with_absolute_paths(run_config(config.model_dump(), where="config"))
    device = check(config)
    prepare_machine(config.training)
    group = join(device)
    assert config.output is not None
    directory = create(Path(config.output), config) if group.rank == 0 else RunDirectory(Path(config.output))
    return Run(config, directory, device, group).go()


KEPT_ON_RESUME = ("seed", "accumulate", "metrics", "criterion")


def resume(path: Path, overrides: dict[str, Any] | None = None) -> RunResult:
    """Go on with a run from its newest checkpoint; limits and the like may change, data and model may not."""
    directory = RunDirectory(Path(path))
    if not directory.config.is_file():
        raise SaccadeError("is no run directory", where=str(path), do="name the --output of an earlier run")
    saved = read_yaml(directory.config)
    before = run_config(saved, where=str(directory.config))
    config = run_config(merge(saved, overrides or {}), where=str(directory.config))
    check_resumable(before, config)
    config = config.model_copy(update={"output": str(path)})
    device = check(config)
    prepare_machine(config.training)
    group = join(device)
    if group.rank == 0 and config != before:
        write_yaml(config, directory.config)
    return Run(config, directory, device, group, resumed=True).go()


def check_resumable(before: RunConfig, after: RunConfig) -> None:
    """Refuse changes under which the rest of a run would not be the rest of that run."""
    changed = [name for name in ("model", "data") if getattr(before, name) != getattr(after, name)]
    changed += [
        f"training.{name}" for name in KEPT_ON_RESUME if getattr(before.training, name) != getattr(after.training, name)
    ]
    if changed:
        raise SaccadeError(
            f"a resumed run keeps its {', '.join(changed)}",
            do="leave these settings as they were, or start a new run with another --output",
        )


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The same run with data paths that stay true wherever its config is read again."""
    paths = config.data.model_dump(include={"source", "target", "valid_source", "valid_target"})
    absolute = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    return config.model_copy(update={"data": config.data.model_copy(update=absolute)})


def check(config: RunConfig) -> torch.device:
    """Refuse at once what would fail later; returns the device to compute on."""
    check_complete(config)
    for name in config.training.metrics:
        find_metric(name)
    return choose_device(config.training.device, local_rank())


def prepare_machine(config: TrainingConfig) -> None:
    """Settings of the process that make training faster and change no result."""
    keep_memory()
    if config.threads:
        torch.set_num_threads(config.threads)


def autocast_for(device: torch.device, precision: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """bf16 where the device has hardware for it; the CPU is faster in float32."""
    wanted = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return partial(torch.autocast, device.type, dtype=torch.bfloat16) if wanted else contextlib.nullcontext


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
    ) -> None:
        self.config = config
        self.directory = directory
        self.group = group
        self.training = config.training
        self.resumed = resumed
        self.device = device
        self.tracker: Tracker = SilentTracker()
        if group.rank == 0:
            self.tracker = RunTracker(directory, metrics=self.training.metrics, log_every=self.training.log_every)
        self.best: Validation | None = None

    def go(self) -> RunResult:
        """Do everything; whatever happens, say where the run lies."""
        self.tracker.say(f"run directory: {self.directory.path}")
        try:
            self.prepare()
        except BaseException:
            self.tracker.close()
            if self.group.rank == 0 and not self.resumed:  # nothing is learnt yet: the same command may come again
                shutil.rmtree(self.directory.path, ignore_errors=True)
            raise
        try:
            interrupted = self.learn()
            self.finish(whole=interrupted is None)
        except NotFiniteError as error:
            raise self.not_finite(error) from None
        finally:
            self.tracker.say(f"run directory: {self.directory.path}")
            self.tracker.close()
        progress = self.loop.progress
        return RunResult(self.directory, progress.step, self.best, progress.seconds, interrupted)

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
        saved = self.directory.path / "tokenizers"
        self.data = load_data(self.config.data, saved if self.resumed else None, self.tracker)
        if self.group.rank == 0 and not self.resumed:  # a resumed run must not train them again
            saved.mkdir()
            save_tokenizers(saved, self.data.tokenizers)
        self.choice: Choice = self.config.choice()
        torch.manual_seed(self.training.seed)
        sizes = vocabulary_sizes(self.data.tokenizers)
        self.model: Any = self.choice.build(sizes).to(self.device)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.tracker.say(f"model: {self.choice.family}, {self.parameters:,} parameters, on {self.device}")
        self.objective = Likelihood(self.training.label_smoothing)
        optimizer = make_optimizer(self.model.parameters(), self.training)
        plan = plan_epoch(self.data.train, batch_tokens=self.config.data.batch_tokens, seed=self.training.seed, epoch=0)
        self.tracker.say(f"batches: {len(plan):,} an epoch, {plan.padding:.1%} padding")
        self.total_steps = self.find_total(math.ceil(len(plan) / self.training.accumulate))
        check_lengths(self.model, self.data)
        self.decoding = fit_length_limit(self.config.decoding, self.data.train)
        peak = self.training.learning_rate or paper_peak(self.choice.config.width, self.training.warmup_steps)
        self.loop = Loop(
            self.model,
            self.objective,
            optimizer,
            self.data.train,
            symbols=self.data.tokenizers.target.symbols,
            rate=partial(
                learning_rate,
                schedule=self.training.schedule,
                peak=peak,
                warmup=self.training.warmup_steps,
                total=self.total_steps,
            ),
            seed=self.training.seed,
            batch_tokens=self.config.data.batch_tokens,
            accumulate=self.training.accumulate,
            clip_norm=self.training.clip_norm,
            device=self.device,
            group=self.group,
            autocast=autocast_for(self.device, self.training.precision),
        )
        batch = collate(self.data.train, plan.batches[0], self.loop.symbols).to(self.device)
        self.flop_rate = FlopRate.measure(self.model, self.objective, batch)
        if self.resumed:
            self.restore()
        self.translator = Translator(self.model, self.data.tokenizers, self.decoding, self.device)

    def restore(self) -> None:
        """Continue from the newest checkpoint."""
        kept = checkpoints(self.directory.checkpoints)
        if not kept:
            raise SaccadeError("holds no checkpoint", where=str(self.directory.path), do="start the run anew elsewhere")
        self.loop.progress = load_checkpoint(kept[-1], self.model, self.loop.optimizer)
        if self.group.rank == 0:
            drop_rows_after(self.directory.metrics, self.loop.progress.step)
        self.tracker.say(f"resumed from {kept[-1]}")

    def find_total(self, steps_an_epoch: int) -> int | None:
        """The number of updates that the schedule counts on; epochs differ a little in their number of batches."""
        epochs = self.max_epochs
        limits = [self.training.max_steps, epochs * steps_an_epoch if epochs else None]
        return min((limit for limit in limits if limit), default=None)

    @property
    def max_epochs(self) -> int | None:
        """The most epochs, also where no limit is given at all."""
        training = self.training
        limited = training.max_steps or training.max_epochs or training.max_minutes
        return training.max_epochs if limited else DEFAULT_EPOCHS

    def learn(self) -> str | None:
        """Update until a limit, early stopping or a signal; returns the signal's name."""
        progress, training = self.loop.progress, self.training
        began = time.perf_counter() - progress.seconds
        self.model.train()
        with Interruption() as interruption:
            updates = self.loop.updates()
            reason = self.reason_to_stop(interruption)
            while reason is None:
                update = next(updates)
                progress.flops += self.flop_rate.per_token * update.target_tokens
                progress.seconds = time.perf_counter() - began
                self.tracker.update(update, progress, self.share_done())
                reason = self.reason_to_stop(interruption)
                ends = reason is not None and interruption.signal is None
                if ends or update.step % training.validate_every == 0:
                    self.judge()
                    progress.seconds = time.perf_counter() - began
                    reason = reason or self.reason_to_stop(interruption)
                if reason is not None or update.step % training.checkpoint_every == 0:
                    self.save()
            self.tracker.say(f"stopped after {progress.step:,} updates: {reason}")
        return interruption.name if interruption.signal is not None else None

    def reason_to_stop(self, interruption: Interruption) -> str | None:
        """Why the run ends here, if it does; all processes agree."""
        progress, training = self.loop.progress, self.training
        reason = None
        if interruption.signal is not None:
            reason = f"{interruption.name}; go on with saccade train --resume {self.directory.path}"
        elif training.max_steps and progress.step >= training.max_steps:
            reason = "all steps are done"
        elif self.max_epochs and progress.epoch >= self.max_epochs:
            reason = "all epochs are done"
        elif training.max_minutes and progress.seconds >= 60 * training.max_minutes:
            reason = f"{training.max_minutes:g} minutes are over"
        elif training.patience and progress.stale >= training.patience:
            reason = f"no better {training.criterion} since step {progress.best_step:,}"
        if self.group.size > 1 and self.group.totals([float(reason is not None)])[0] and reason is None:
            reason = "another process stopped"
        return reason

    def share_done(self) -> float | None:
        """How much of the run is over, by whichever limit is nearer."""
        progress, training = self.loop.progress, self.training
        shares = [progress.step / self.total_steps] if self.total_steps else []
        if training.max_minutes:
            shares.append(progress.seconds / 60 / training.max_minutes)
        return min(1.0, max(shares)) if shares else None

    def judge(self) -> None:
        """Validate, and keep the model if it is the best so far."""
        if self.data.valid is None or self.group.rank != 0:
            return
        found = self.validate()
        progress = self.loop.progress
        self.tracker.validation(progress.step, found)
        value = found.value(self.training.criterion)
        if progress.best is None or value < progress.best:
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
            self.best = found
            self.save_model(self.directory.best, found)
        else:
            progress.stale += 1

    def validate(self) -> Validation:
        """The model as it is now, on the validation data."""
        assert self.data.valid is not None
        return validate(
            self.translator,
            self.data.valid,
            self.objective,
            metrics=self.training.metrics,
            batch_tokens=self.config.data.batch_tokens,
            sentences=self.training.valid_sentences,
            samples=self.training.samples,
        )

    def save(self) -> None:
        """A checkpoint; older ones go when it is whole."""
        if self.group.rank == 0:
            save_checkpoint(self.directory.checkpoints, self.model, self.loop.optimizer, self.loop.progress)
            prune(self.directory.checkpoints, self.training.keep_checkpoints)

    def save_model(self, path: Path, found: Validation | None, note: str = "") -> None:
        """A complete model folder."""
        card = model_card(self.config, self.choice, self.loop.progress, self.parameters, found, note)
        generation = self.decoding.model_dump(mode="json")
        save_model_folder(path, ModelFolder(self.model, self.choice, self.data.tokenizers, generation, card))

    def finish(self, *, whole: bool) -> None:
        """Last model, averaged model (of a whole run only), and the account of the run."""
        if self.group.rank != 0:
            return
        progress = self.loop.progress
        self.save_model(self.directory.last, None)
        if self.data.valid is None or not self.directory.best.exists():
            self.save_model(self.directory.best, None)
        if whole and self.training.average_last > 1:
            self.consider_average()
        self.tracker.say(
            f"trained {progress.step:,} updates, {progress.target_tokens:,} target tokens, "
            f"{progress.flops:.2e} FLOPs in {person_time(progress.seconds)}"
        )
        if self.best:
            self.tracker.say(f"best model: {self.directory.best}: {self.best}")

    def consider_average(self) -> None:
        """Average the last checkpoints; the average becomes the best model if validation says so."""
        paths = checkpoints(self.directory.checkpoints)[-self.training.average_last :]
        if len(paths) < 2:
            return
        put_weights(self.model, average_weights(paths), paths[0])
        note = f"Weights are the average of {len(paths)} checkpoints, {paths[0].name} to {paths[-1].name}."
        found = self.validate() if self.data.valid else None
        self.tracker.say(f"average of the last {len(paths)} checkpoints: {found or 'not validated'}")
        progress = self.loop.progress
        value = found.value(self.training.criterion) if found else -math.inf
        if progress.best is None or value < progress.best:
            self.best = found
            self.save_model(self.directory.best, found, note)
            load_weights(self.model, paths[-1] / WEIGHTS)
            progress.best = value if found else None
            self.save()  # a run that is resumed must know what it has to beat
