"""Settings of a run: one group a part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from saccade.config import Config, build, merge, read_yaml
from saccade.data.config import DataConfig
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.models.registry import Choice, choose

ScheduleKind = Literal["inverse-sqrt", "linear", "cosine", "constant"]


class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = Field(1, ge=0)
    """Decides the first weights, the data order and every dropped unit."""
    max_steps: int | None = Field(None, ge=1)
    """Stop after this many updates."""
    max_epochs: int | None = Field(None, ge=1)
    """Stop after this many passes over the data; 30 when no limit is given."""
    max_minutes: float | None = Field(None, gt=0)
    """Stop after this many minutes, validation included; may end a run but never shapes it."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate; by default the paper's, (width x warmup-steps)^-0.5."""
    schedule: ScheduleKind = "inverse-sqrt"
    """The rate after the warm-up: the paper's inverse square root, down to zero at the end, or constant."""
    warmup_steps: int = Field(1000, ge=0)
    """Updates over which the rate rises linearly to its peak."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Share of the probability that the target gives to the whole vocabulary."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.98)
    """Adam's two decay rates."""
    epsilon: float = Field(1e-9, gt=0)
    """Adam's epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay (AdamW); 0 is plain Adam."""
    clip_norm: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 does not clip."""
    accumulate: int = Field(1, ge=1)
    """Batches in one update; the result is that of one big batch."""
    log_every: int = Field(50, ge=1, le=10_000)
    """Updates between two lines of the log."""
    validate_every: int = Field(500, ge=1)
    """Updates between two validations; there is always one at the end."""
    checkpoint_every: int = Field(500, ge=1)
    """Updates between two checkpoints; there is always one at the end."""
    keep_checkpoints: int = Field(5, ge=1)
    """Checkpoints kept; older ones are removed when a new one is whole."""
    average_last: int = Field(0, ge=0)
    """At the end, average the weights of this many last checkpoints; kept as the best model if validation agrees."""
    metrics: tuple[str, ...] = ("bleu",)
    """Scores of the validation outputs, by greedy search."""
    criterion: str = "loss"
    """What decides which model is best, and early stopping: loss, or one of the metrics."""
    patience: int = Field(0, ge=0)
    """Stop after this many validations without a better criterion; 0 never stops early."""
    valid_sentences: int = Field(500, ge=0)
    """Validation sentences that are translated and scored; the loss always takes all."""
    samples: int = Field(5, ge=0)
    """Sample translations shown at every validation."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """bf16 on GPUs that have it, else float32."""
    threads: int | None = Field(None, ge=1)
    """Threads of the CPU; by default all cores. Bitwise equal runs need equal threads."""

    @model_validator(mode="after")
    def fit_together(self) -> TrainingConfig:
        """Refuse what would fail later."""
        if self.schedule in ("linear", "cosine") and not (self.max_steps or self.max_epochs):
            raise ValueError(f"a {self.schedule} schedule needs max-steps or max-epochs: it must know its end")
        if self.criterion != "loss" and self.criterion not in self.metrics:
            raise ValueError(f"criterion '{self.criterion}' is not among the metrics {', '.join(self.metrics)}")
        if self.criterion != "loss" and not self.valid_sentences:
            raise ValueError(f"criterion '{self.criterion}' needs valid-sentences above 0")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(f"average-last {self.average_last} needs keep-checkpoints of at least {self.average_last}")
        return self


class RunConfig(Config):
    """A whole run; each part is handed only its own group."""

    model: dict[str, Any] = Field(default_factory=dict)
    """A preset or a family, and the settings of that family."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()
    output: str | None = None
    """The run directory."""

    def choice(self) -> Choice:
        """The model that this run trains."""
        return choose(self.model)


def read_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The run in a YAML file with some settings changed; data paths in it are relative to $SACCADE_DATA (./data)."""
    values = read_yaml(path)
    data = values.get("data")
    if isinstance(data, dict):
        root = Path(os.environ.get("SACCADE_DATA", "data"))
        for key in ("source", "target", "valid_source", "valid_target"):
            if isinstance(data.get(key), str):
                data[key] = str(root / data[key])
            elif isinstance(data.get(key), list):  # anything but texts in it is refused when the config is built
                data[key] = [str(root / path) if isinstance(path, str) else path for path in data[key]]
    return run_config(merge(values, overrides or {}), where=str(path))


def run_config(values: Mapping[str, Any], *, where: str) -> RunConfig:
    """A complete run config from plain data: the model's settings are resolved and checked too."""
    config = build(RunConfig, values, where=where)
    choice = choose(config.model, where=f"{where}, model")
    return config.model_copy(update={"model": choice.dump()})


def check_complete(config: RunConfig) -> None:
    """Refuse a run that lacks its data or its place."""
    if not config.data.source:
        raise SaccadeError("no training data is named", do="give --source and --target, or a recipe")
    if config.output is None:
        raise SaccadeError("no run directory is named", do="give --output runs/NAME")
    judged = config.training.patience or config.training.criterion != "loss"
    if judged and not (config.data.valid_source or config.data.hold_out):
        raise SaccadeError(
            "early stopping and a criterion need validation data", do="give --valid-source, or --data.hold-out 500"
        )
