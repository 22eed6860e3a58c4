"""Model selection: validation decides which model of a run is saved as model-best; the last one is always saved."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from saccade.data.cache.corpus import Corpus
from saccade.data.config import DataConfig
from saccade.errors import SaccadeError
from saccade.folder import read_json, recover, verify
from saccade.inference.translator import Translator
from saccade.model_folder import (
    VALIDATION,
    WEIGHTS,
    ModelFolder,
    copy_weights,
    load_weights,
    save_model_folder,
)
from saccade.models.registry import Choice
from saccade.training.checkpoints.averaging import average_weights
from saccade.training.checkpoints.checkpoint import list_checkpoints, scheduled_checkpoints
from saccade.training.config import TrainingConfig
from saccade.training.loop import Progress
from saccade.training.objectives.objective import Objective
from saccade.training.runs.directory import RunDirectory
from saccade.training.runs.model_card import model_card
from saccade.training.runs.tracking import Tracker
from saccade.training.validation import Validation, validate


class BestModel(NamedTuple):
    """Validation of the model in model-best."""

    validation: Validation | None = None
    value: float = math.inf  # of the criterion, to minimize


class ModelSelection:
    """Validates the model of a run and writes the folders model-best and model-last."""

    def __init__(
        self,
        directory: RunDirectory,
        training: TrainingConfig,
        data: DataConfig,
        choice: Choice,
        translator: Translator,
        objective: Objective,
        valid: Corpus | None,
        tracker: Tracker,
    ) -> None:
        self.directory = directory
        self.training = training
        self.data = data
        self.choice = choice
        self.translator = translator
        self.model: Any = translator.model
        self.objective = objective
        self.valid = valid
        self.tracker = tracker
        self.best = BestModel()

    def recover(self) -> None:
        """Clean up after a killed writer, and read the validation of the best model."""
        for path in (self.directory.best, self.directory.last):
            recover(path)
        try:
            verify(self.directory.best, VALIDATION)
            found = read_json(self.directory.best / VALIDATION)
            self.best = BestModel(Validation.from_json(found), float(found["value"]))
        except (SaccadeError, KeyError, TypeError, ValueError):
            return  # absent or damaged: the next validation writes model-best again

    def validate_and_select(self, progress: Progress) -> None:
        """Validate, update the counters of early stopping, and save the model if it is the best so far."""
        if self.valid is None:
            return
        validation = self.validate(self.valid)
        self.tracker.validation(progress.step, validation)
        value = validation.value(self.training.criterion)
        if math.isfinite(value) and (progress.best is None or value < progress.best):
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
        else:
            progress.stale += 1
        self.save_if_best(progress, validation)

    def validate_last(self, progress: Progress) -> None:
        """Validate the last step; early stopping does not count it, because a resumed run would not have it."""
        if self.valid is None or progress.step % self.training.validate_every == 0:
            return
        validation = self.validate(self.valid)
        self.tracker.validation(progress.step, validation)
        self.save_if_best(progress, validation)

    def save_if_best(self, progress: Progress, validation: Validation | None, note: str = "") -> None:
        """Save the model as model-best if it is better than the saved one, or if there is no validation."""
        value = validation.value(self.training.criterion) if validation else -math.inf
        if value < self.best.value:
            self.best = BestModel(validation, value)
            self.save(progress, validation, best=True, note=note)

    def validate_average(self, progress: Progress) -> None:
        """Average the last checkpoints; save the average as model-best if its validation is better."""
        kept = scheduled_checkpoints(list_checkpoints(self.directory.checkpoints), self.training.checkpoint_every)
        paths = kept[-self.training.average_last :]
        if len(paths) < 2:
            return
        try:
            weights = average_weights(paths)
        except SaccadeError as error:
            self.tracker.warn(f"checkpoints are not averaged: {error.where}: {error.what}")
            return
        copy_weights(self.model, weights, paths[0])
        note = f"Weights are the average of {len(paths)} checkpoints, {paths[0].name} to {paths[-1].name}."
        validation = self.validate(self.valid) if self.valid else None
        self.tracker.log(f"average of the last {len(paths)} checkpoints: {validation or 'not validated'}")
        self.save_if_best(progress, validation, note)
        load_weights(self.model, paths[-1] / WEIGHTS)

    def finish(self, progress: Progress, *, completed: bool) -> None:
        """Save model-last; a run that was not interrupted also validates the last step and the average."""
        if completed:
            self.validate_last(progress)
        self.save(progress, None, best=False)
        if self.valid is None or not self.directory.best.exists():
            self.save(progress, None, best=True)
        if completed and self.training.average_last > 1:
            self.validate_average(progress)
        if self.best.validation:
            self.tracker.log(f"best model: {self.directory.best}: {self.best.validation}")

    def validate(self, valid: Corpus) -> Validation:
        """Validate the current weights."""
        return validate(
            self.translator,
            valid,
            self.objective,
            metrics=self.training.metrics,
            batch_tokens=self.data.batch_tokens,
            sentences=self.training.valid_sentences,
            samples=self.training.samples,
            beam=self.training.valid_beam,
        )

    def save(self, progress: Progress, validation: Validation | None, *, best: bool, note: str = "") -> None:
        """Write a complete model folder."""
        record = None
        if validation:
            criterion = self.training.criterion
            value = validation.value(criterion)
            record = {"step": progress.step, "criterion": criterion, "value": value, **validation.to_json()}
        folder = ModelFolder(
            self.model,
            self.choice,
            self.translator.tokenizers,
            self.translator.decoding.model_dump(mode="json"),
            model_card(self.data, self.choice, progress, self.parameters, validation, note),
            record,
        )
        save_model_folder(self.directory.best if best else self.directory.last, folder)

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())
