"""Model selection: validation decides which model of a run is kept as the best; the last one is always kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from saccade.data.cache.corpus import Corpus
from saccade.errors import SaccadeError
from saccade.folder import read_json, recover, verify
from saccade.inference.translator import Translator
from saccade.model_folder import (
    VALIDATION,
    WEIGHTS,
    ModelFolder,
    load_weights,
    put_weights,
    save_model_folder,
)
from saccade.models.registry import Choice
from saccade.training.checkpoints.averaging import average_weights
from saccade.training.checkpoints.checkpoint import checkpoints, regular
from saccade.training.config import RunConfig
from saccade.training.loop import Progress
from saccade.training.model_card import model_card
from saccade.training.objectives.objective import Objective
from saccade.training.run_directory import RunDirectory
from saccade.training.run_tracking import Tracker
from saccade.training.validation import Validation, validate


class Kept(NamedTuple):
    """The model in model-best, as far as this process knows it."""

    validation: Validation | None = None
    value: float = math.inf  # of the criterion, to minimise


class Selection:
    """Validates a run's model and writes its folders, model-best and model-last."""

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        choice: Choice,
        translator: Translator,
        objective: Objective,
        valid: Corpus | None,
        tracker: Tracker,
    ) -> None:
        self.directory = directory
        self.config = config
        self.training = config.training
        self.choice = choice
        self.translator = translator
        self.model: Any = translator.model
        self.objective = objective
        self.valid = valid
        self.tracker = tracker
        self.best = Kept()

    def recover(self) -> None:
        """Put folders right that a killed writer left, and learn how good the best model is."""
        for path in (self.directory.best, self.directory.last):
            recover(path)
        try:
            verify(self.directory.best, VALIDATION)
            found = read_json(self.directory.best / VALIDATION)
            self.best = Kept(Validation.from_json(found), float(found["value"]))
        except (SaccadeError, KeyError, TypeError, ValueError):
            return  # there is none, or nobody can trust it: the next validation writes it anew

    def judge(self, progress: Progress) -> None:
        """Validate, note what early stopping needs, and keep the model if it is the best so far."""
        if self.valid is None:
            return
        found = self.validate(self.valid)
        self.tracker.validation(progress.step, found)
        value = found.value(self.training.criterion)
        if math.isfinite(value) and (progress.best is None or value < progress.best):
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
        else:
            progress.stale += 1
        self.keep_if_best(progress, found)

    def judge_end(self, progress: Progress) -> None:
        """Validate where a run ends between two validations; what ended it must not shape it, should it go on."""
        if self.valid is None or progress.step % self.training.validate_every == 0:
            return
        found = self.validate(self.valid)
        self.tracker.validation(progress.step, found)
        self.keep_if_best(progress, found)

    def keep_if_best(self, progress: Progress, found: Validation | None, note: str = "") -> None:
        """Save the model as the best if it is better than the one that is there, or if nobody can tell."""
        value = found.value(self.training.criterion) if found else -math.inf
        if value < self.best.value:
            self.best = Kept(found, value)
            self.save(progress, found, best=True, note=note)

    def consider_average(self, progress: Progress) -> None:
        """Average the last checkpoints; the average becomes the best model if validation says so."""
        kept = regular(checkpoints(self.directory.checkpoints), self.training.checkpoint_every)
        paths = kept[-self.training.average_last :]
        if len(paths) < 2:
            return
        try:
            weights = average_weights(paths)
        except SaccadeError as error:
            self.tracker.say(f"no average is made: {error.where}: {error.what}")
            return
        put_weights(self.model, weights, paths[0])
        note = f"Weights are the average of {len(paths)} checkpoints, {paths[0].name} to {paths[-1].name}."
        found = self.validate(self.valid) if self.valid else None
        self.tracker.say(f"average of the last {len(paths)} checkpoints: {found or 'not validated'}")
        self.keep_if_best(progress, found, note)
        load_weights(self.model, paths[-1] / WEIGHTS)

    def finish(self, progress: Progress, *, whole: bool) -> None:
        """The last model, and for a run that was not interrupted a last validation and the average."""
        if whole:
            self.judge_end(progress)
        self.save(progress, None, best=False)
        if self.valid is None or not self.directory.best.exists():
            self.save(progress, None, best=True)
        if whole and self.training.average_last > 1:
            self.consider_average(progress)
        if self.best.validation:
            self.tracker.say(f"best model: {self.directory.best}: {self.best.validation}")

    def validate(self, valid: Corpus) -> Validation:
        """The model as it is now, on the validation data."""
        return validate(
            self.translator,
            valid,
            self.objective,
            metrics=self.training.metrics,
            batch_tokens=self.config.data.batch_tokens,
            sentences=self.training.valid_sentences,
            samples=self.training.samples,
        )

    def save(self, progress: Progress, found: Validation | None, *, best: bool, note: str = "") -> None:
        """A complete model folder."""
        validation = None
        if found:
            criterion = self.training.criterion
            value = found.value(criterion)
            validation = {"step": progress.step, "criterion": criterion, "value": value, **found.to_json()}
        folder = ModelFolder(
            self.model,
            self.choice,
            self.translator.tokenizers,
            self.translator.decoding.model_dump(mode="json"),
            model_card(self.config, self.choice, progress, self.parameters, found, note),
            validation,
        )
        save_model_folder(self.directory.best if best else self.directory.last, folder)

    @property
    def parameters(self) -> int:
        """Numbers that were learnt."""
        return sum(parameter.numel() for parameter in self.model.parameters())
