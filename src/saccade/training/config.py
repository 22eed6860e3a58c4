"""Settings of a run: one group a part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from saccade.config import Config, build, hyphenated, merge, read_yaml, underscored
from saccade.data.config import DataConfig
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.models.family import Family
from saccade.models.registry import Choice, choose, load_family
from saccade.training.checkpoints.start_from_model import (
    complete_from_start,
    is_gone,
    is_resolved,
    start_folder,
    start_of,
)

ScheduleKind = Literal["inverse-sqrt", "linear", "cosine", "constant"]
ObjectiveKind = Literal["likelihood", "minimum-risk"]
RewardUnit = Literal["word", "token"]

FINE_TUNING: Mapping[str, Any] = {"learning_rate": 5e-5, "schedule": "constant", "warmup_steps": 100}
"""What training is by default if it starts from trained weights: the rate of a fresh model would undo them."""

LIMITS = ("max_steps", "max_epochs", "max_minutes")

FROM_SCRATCH = frozenset({*FINE_TUNING, *LIMITS, "optimizer"})
"""Settings in a family's recipe that are meant for a fresh model only."""


class RiskConfig(Config):
    """Minimum risk: outputs are drawn from the model, and those with a higher reward become more probable."""

    samples: int = Field(15, ge=1, le=1000)
    """Outputs drawn of each sentence; equal ones count once."""
    include_reference: bool = True
    """Whether the reference is compared with them as well."""
    reward: Literal["gleu", "bleu"] = "gleu"
    """What an output is worth: GLEU, or the smoothed BLEU of a sentence."""
    unit: RewardUnit = "word"
    """What rewards count: words of the text, or tokens."""
    sharpness: float = Field(0.005, gt=0, le=10)
    """The power that probabilities are raised to when outputs are compared; near 0 all count alike."""
    likelihood_weight: float = Field(0.017, ge=0, le=1000)
    """How much the likelihood of the reference counts beside an expected reward."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Of drawing: below 1 sharpens the distribution, above 1 flattens it."""
    max_length_factor: float = Field(1.5, ge=1, le=100)
    """Symbols that an output may have for each of the reference; it is cut off there."""
    max_length_offset: int = Field(5, ge=0, le=100_000)
    """Symbols that it may have on top of those."""

    @model_validator(mode="after")
    def compares(self) -> RiskConfig:
        """Refuse a risk that has no gradient."""
        if self.samples == 1 and not self.include_reference:
            raise ValueError("one sample without the reference has nothing to be compared with: raise samples")
        return self


class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = Field(1, ge=0)
    """Decides the first weights, the data order, every dropped unit and every drawn output."""
    start: str | None = Field(None, min_length=1)
    """A run or model folder to start from: its weights, its model's settings, its tokenizers; see --from."""
    objective: ObjectiveKind = "likelihood"
    """What is minimised: cross-entropy, or the risk of the model's own outputs; the latter needs a start."""
    risk: RiskConfig = RiskConfig()
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
    consistency: float = Field(0.0, ge=0, le=1000)
    """See each example twice, with other units dropped, and weigh the divergence of the answers by this (R-Drop)."""
    consistency_after: int = Field(0, ge=0)
    """Updates before that begins: until the model knows something, it only takes time."""
    optimizer: Literal["adam", "muon"] = "adam"
    """Adam, or Muon for the matrices and Adam for the rest."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Muon's momentum."""
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
    compile: bool = False
    """Compile the layers with torch.compile: for GPUs, where it saves launches; on the CPU it gains nothing."""
    threads: int | None = Field(None, ge=1)
    """Threads of the CPU; by default all cores. Bitwise equal runs need equal threads."""

    @model_validator(mode="after")
    def fit_together(self) -> TrainingConfig:
        """Refuse what would fail later, or would do nothing."""
        if self.objective == "likelihood" and self.risk != RiskConfig():
            raise ValueError("risk only acts on minimum risk: set objective to minimum-risk, or leave risk out")
        if self.objective == "minimum-risk" and self.start is None:
            raise ValueError("minimum-risk needs a trained model to draw from: name it with --from RUN")
        if self.objective == "minimum-risk" and self.consistency:
            raise ValueError("consistency only acts on likelihood: leave it out with minimum-risk")
        if self.consistency_after and not self.consistency:
            raise ValueError("consistency-after only acts with consistency: set it, or leave consistency-after out")
        if self.max_steps and self.consistency_after >= self.max_steps:
            raise ValueError(
                f"consistency-after {self.consistency_after} is not before the end, max-steps {self.max_steps}"
            )
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
    if overrides:
        check_new_start(underscored(values), underscored(overrides), where=str(path))
    return run_config(merge(values, overrides or {}), where=str(path))


def check_new_start(recipe: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str) -> None:
    """Refuse to train a model that a recipe does not know of by its rate and its limits, unless they are repeated."""
    start = start_of(overrides)
    if start is None:
        return
    start_folder(start)
    given, said = recipe.get("training"), overrides["training"]
    if start_of(recipe) is not None or not isinstance(given, Mapping):
        return
    fresh = {name: given[name] for name in FINE_TUNING if name in given and not same(given[name], FINE_TUNING[name])}
    if not said.keys() & set(LIMITS):
        fresh |= {name: given[name] for name in LIMITS if given.get(name) is not None}
    left = {name: value for name, value in fresh.items() if name not in said}
    if left:
        own = ", ".join(f"{hyphenated(name)} {'open' if value is None else value}" for name, value in left.items())
        usual = {hyphenated(name): FINE_TUNING.get(name, value) for name, value in left.items()}
        raise SaccadeError(
            f"{where} is written for a fresh model, not for that of {start}: {own}",
            do="say what you want, for example: "
            + " ".join(f"--training.{name} {value}" for name, value in usual.items()),
        )


def same(given: Any, default: Any) -> bool:
    """Whether a setting of a recipe, perhaps a number as text, is this default."""
    try:
        return float(given) == float(default)
    except (TypeError, ValueError):
        return bool(given == default)


def run_config(values: Mapping[str, Any], *, where: str, saved: bool = False) -> RunConfig:
    """A complete run config from plain data: the model's settings are resolved and checked too.

    What is left open is taken from the model to start from and from the family's recipe; a `saved` config left nothing
    open, and another version's recipe must not change it.
    """
    values = underscored(values)
    if not saved:
        try:
            values = with_suggestions(values, where=where)
        except SaccadeError:
            build(RunConfig, values, where=where)  # a misspelt setting is the first thing to tell
            raise
    config = build(RunConfig, values, where=where)
    choice = choose(config.model, where=f"{where}, model")
    return config.model_copy(update={"model": choice.dump()})


def with_suggestions(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Plain settings on top of what suits the family of their model, and of what suits a model that is trained already.

    Doing it again changes nothing: what was put under the settings is among them then. A folder that is gone is missed
    only by settings that never met it.
    """
    start = start_of(values)
    if start is not None and not (is_resolved(values) and is_gone(start)):
        values = complete_from_start(values, start, where=where)
    model = values.get("model", {})
    family = load_family(choose(model, where=f"{where}, model").family)
    recipe = merge(underscored(family.recipe), recipe_of_preset(family, model.get("preset"), values))
    if start is not None:
        suited = {name: value for name, value in recipe.get("training", {}).items() if name not in FROM_SCRATCH}
        recipe = {**recipe, "training": {**suited, **FINE_TUNING, **risk_criterion(values)}}
    return merge(recipe, values)


def recipe_of_preset(family: Family, preset: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """What suits a preset; its rate belongs to its optimizer, and is nothing for another one."""
    recipe = underscored(family.preset_recipes.get(preset, {})) if isinstance(preset, str) else {}
    training, asked = recipe.get("training", {}), values.get("training")
    chosen = asked.get("optimizer") if isinstance(asked, Mapping) else None
    return {**recipe, "training": {}} if chosen not in (None, training.get("optimizer")) else dict(recipe)


def risk_criterion(values: Mapping[str, Any]) -> dict[str, Any]:
    """What chooses among models of minimum risk if there is validation data: not the loss, which it may well raise."""
    training, data = values.get("training", {}), values.get("data", {})
    if not isinstance(data, Mapping) or training.get("objective") != "minimum-risk":
        return {}
    metrics = training.get("metrics", TrainingConfig.model_fields["metrics"].default)
    validated = data.get("valid_source") or str(data.get("hold_out", 0)) != "0"
    return {"criterion": metrics[0]} if validated and isinstance(metrics, list | tuple) and metrics else {}


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The same run with paths that stay true wherever its config is read again."""
    data, training = config.data, config.training
    absolute: dict[str, Any] = {
        name: tuple(str(Path(path).absolute()) for path in getattr(data, name)) for name in ("source", "target")
    }
    for name in ("valid_source", "valid_target"):
        path = getattr(data, name)
        absolute[name] = None if path is None else str(Path(path).absolute())
    changes: dict[str, Any] = {"data": data.model_copy(update=absolute)}
    if training.start is not None:
        changes["training"] = training.model_copy(update={"start": str(Path(training.start).absolute())})
    return config.model_copy(update=changes)


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
