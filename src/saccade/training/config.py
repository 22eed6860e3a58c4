"""Schema of the config of a training run: one section for each part. `config_resolution` fills it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from saccade.config import Config
from saccade.config_help import HelpGroup
from saccade.data.config import DataConfig
from saccade.decoding.config import DecodingConfig
from saccade.models.registry import Choice, choose

ScheduleKind = Literal["inverse-sqrt", "linear", "cosine", "constant"]
ObjectiveKind = Literal["likelihood", "minimum-risk"]
TrackerName = Literal["wandb", "mlflow", "trackio"]
RewardUnit = Literal["word", "token"]

MINIMUM_RISK = HelpGroup("Minimum risk training")


class RiskConfig(Config):
    """Minimum risk training: sampled outputs with a higher reward become more probable."""

    samples: int = Field(15, ge=1, le=1000)
    """Samples per sentence; duplicates count once."""
    include_reference: bool = True
    """Whether the reference is added to the samples."""
    reward: Literal["gleu", "bleu"] = "gleu"
    """Reward of an output: gleu, or bleu (smoothed, per sentence)."""
    unit: RewardUnit = "word"
    """Unit of the reward's n-grams: word or token."""
    sharpness: float = Field(0.005, gt=0, le=10)
    """Exponent of the probabilities of the samples (alpha); near 0 their distribution is uniform."""
    likelihood_weight: float = Field(0.017, ge=0, le=1000)
    """Weight of the reference's cross-entropy relative to the expected reward."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature: below 1 sharpens the distribution, above 1 flattens it."""
    max_length_factor: float = Field(1.5, ge=1, le=100)
    """Maximum length of a sample: tokens per reference token."""
    max_length_offset: int = Field(5, ge=0, le=100_000)
    """Maximum length of a sample: tokens in addition."""

    @model_validator(mode="after")
    def has_gradient(self) -> RiskConfig:
        """Reject settings under which the risk has no gradient."""
        if self.samples == 1 and not self.include_reference:
            raise ValueError("one sample without the reference has no gradient: raise samples")
        return self


class TrainingConfig(Config):
    """Training settings."""

    seed: int = Field(1, ge=0)
    """Random seed of weight initialization, data order, dropout and samples."""
    start: str | None = Field(None, min_length=1)
    """A run or model folder to fine-tune: its weights, model settings and tokenizers; see --from."""
    objective: Annotated[ObjectiveKind, MINIMUM_RISK] = "likelihood"
    """likelihood (cross-entropy), or minimum-risk (expected reward of samples), which needs `start`."""
    risk: Annotated[RiskConfig, MINIMUM_RISK] = RiskConfig()
    max_steps: int | None = Field(None, ge=1)
    """Stop after this many updates."""
    max_epochs: int | None = Field(None, ge=1)
    """Stop after this many epochs; 30 if no limit of steps, epochs or minutes is given."""
    max_minutes: float | None = Field(None, gt=0)
    """Stop after this many minutes, including validation; the learning rate does not depend on this limit."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate; without a value, (width x warmup-steps)^-0.5 (Vaswani et al. 2017)."""
    schedule: ScheduleKind = "inverse-sqrt"
    """Learning rate after warmup: inverse-sqrt, linear or cosine (both to zero at the end), or constant."""
    warmup_steps: int = Field(1000, ge=0)
    """Updates over which the learning rate rises linearly to its peak."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass that label smoothing spreads over the vocabulary."""
    r_drop: float = Field(0.0, ge=0, le=1000)
    """Weight of R-Drop: the KL divergence between two forward passes with different dropout; 0 is off."""
    r_drop_after: int = Field(0, ge=0)
    """Updates before R-Drop starts; in early training it only costs time."""
    optimizer: Literal["adam", "muon"] = "adam"
    """adam, or muon (Muon for weight matrices, Adam for all other parameters)."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Momentum of Muon."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.98)
    """Betas of Adam."""
    epsilon: float = Field(1e-9, gt=0)
    """Epsilon of Adam."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay (AdamW); 0 is plain Adam."""
    clip_norm: float = Field(1.0, ge=0)
    """Maximum gradient norm; 0 does not clip."""
    accumulate: int = Field(1, ge=1)
    """Gradient accumulation: batches per update, equal to one large batch."""
    log_every: int | None = Field(None, ge=1, le=10_000)
    """Updates between two log lines; by default 50, and fewer in the first 250 updates."""
    log_to: tuple[TrackerName, ...] = ()
    """Experiment trackers that get the metrics too: wandb, mlflow, trackio."""
    validate_every: int = Field(500, ge=1)
    """Updates between two validations; there is always one at the end."""
    checkpoint_every: int = Field(500, ge=1)
    """Updates between two checkpoints; there is always one at the end."""
    keep_checkpoints: int = Field(5, ge=1)
    """Number of checkpoints to keep; older ones are deleted after a new one is complete."""
    average_last: int = Field(0, ge=0)
    """At the end, average the last N checkpoints; becomes model-best if it validates better. 0 is off."""
    metrics: tuple[str, ...] = ("bleu",)
    """Validation metrics: bleu, chrf, ter, exact-match, or error rates: sequence-, word-, symbol-, character-error."""
    criterion: str = "loss"
    """Criterion for model-best and early stopping: loss, or one of the metrics."""
    patience: int = Field(0, ge=0)
    """Early stopping: stop after this many validations without improvement; 0 is off."""
    valid_sentences: int = Field(500, ge=0)
    """Number of validation sentences to translate for metrics; the loss uses all."""
    valid_beam: int = Field(1, ge=1, le=1000)
    """Beam size of the translations in validation; 1 is greedy search, the fastest."""
    samples: int = Field(5, ge=0)
    """Example translations logged at every validation."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device: auto, cpu, cuda or mps."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """float32, bf16, or auto: bf16 on GPUs that support it, otherwise float32."""
    compile: bool = False
    """Compile layers with torch.compile: fewer kernel launches on GPUs, no gain on CPUs."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; by default all cores. Bitwise reproducible runs need the same number."""

    @model_validator(mode="after")
    def check_combinations(self) -> TrainingConfig:
        """Reject combinations of settings that would fail later or have no effect."""
        if self.objective == "likelihood" and self.risk != RiskConfig():
            raise ValueError("risk has no effect with likelihood: set objective to minimum-risk, or leave risk out")
        if self.objective == "minimum-risk" and self.start is None:
            raise ValueError("minimum-risk needs a trained model to sample from: name it with --from RUN")
        if self.objective == "minimum-risk" and self.r_drop:
            raise ValueError("r-drop has no effect with minimum-risk: leave it out")
        if self.r_drop_after and not self.r_drop:
            raise ValueError("r-drop-after needs r-drop: set it, or leave r-drop-after out")
        if self.max_steps and self.r_drop_after >= self.max_steps:
            raise ValueError(f"r-drop-after {self.r_drop_after} must be below max-steps {self.max_steps}")
        if self.schedule in ("linear", "cosine") and not (self.max_steps or self.max_epochs):
            raise ValueError(f"a {self.schedule} schedule needs max-steps or max-epochs: it decays until the end")
        if self.criterion != "loss" and self.criterion not in self.metrics:
            raise ValueError(f"criterion '{self.criterion}' is not among the metrics {', '.join(self.metrics)}")
        if self.criterion != "loss" and not self.valid_sentences:
            raise ValueError(f"criterion '{self.criterion}' needs valid-sentences above 0")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(f"average-last {self.average_last} needs keep-checkpoints of at least {self.average_last}")
        return self


class RunConfig(Config):
    """Config of a training run; each part of the program gets only its own section."""

    model: dict[str, Any] = Field(default_factory=dict)
    """A preset or family, and the settings of that family."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()
    output: str | None = None
    """Run directory."""

    def choice(self) -> Choice:
        """Return family and config of the model."""
        return choose(self.model)
