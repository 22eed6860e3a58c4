"""Data config: input files, tokenizers, filters, sampling and batching."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from saccade.config import Config
from saccade.config_help import HelpType
from saccade.errors import UsageError

TokenizerKind = Literal["bpe", "unigram", "char", "byte", "word", "sentencepiece"]
Normalization = Literal["nfc", "nfkc", "none"]

SENTENCEPIECE: Final = "sentencepiece"
MODEL_SUFFIX = ".model"  # of the file of a SentencePiece model
TRAINABLE = tuple(kind for kind in get_args(TokenizerKind) if kind != SENTENCEPIECE)
JOINT_BY_DEFAULT: frozenset[TokenizerKind] = frozenset({"bpe", "unigram", "byte", "sentencepiece"})


def check_tokenizer(setting: str) -> str:
    """Require the kind of a tokenizer, or the path of a SentencePiece model."""
    if setting in get_args(TokenizerKind) or setting.endswith(MODEL_SUFFIX):
        return setting
    raise ValueError(f"must be {', '.join(TRAINABLE)}, or the path of a SentencePiece model, FILE{MODEL_SUFFIX}")


def kind_of(setting: str) -> TokenizerKind:
    """Return the kind of the tokenizer that a setting selects."""
    return SENTENCEPIECE if setting.endswith(MODEL_SUFFIX) else cast(TokenizerKind, setting)


def require_model_file(setting: str) -> str:
    """Require the path of a SentencePiece model; the kind alone names no model."""
    if setting == SENTENCEPIECE:
        raise UsageError(
            "the sentencepiece tokenizer needs a model", hint=f"give its path: --data.tokenizer FILE{MODEL_SUFFIX}"
        )
    return setting


def as_tuple(value: Any) -> Any:
    """Wrap a single path in a tuple; None becomes the empty tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


TokenizerSetting = Annotated[
    str, AfterValidator(check_tokenizer), HelpType("|".join([*TRAINABLE, f"FILE{MODEL_SUFFIX}"]))
]
Paths = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(as_tuple)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataConfig(Config):
    """Config of the training and validation data."""

    source: Paths = ()
    """Files of source sentences, one per line; without `target`, files of pairs (TSV, CSV, JSONL or Parquet)."""

    target: Paths = ()
    """Files of target sentences: one file for each of `source`, one line for each of its lines."""

    weights: tuple[Weight, ...] = ()
    """One weight per source file: its share of the training examples; by default in proportion to its size."""

    temperature: float = Field(1.0, ge=0.05, allow_inf_nan=False)
    """Without weights: share of a file is size^(1/temperature); 1 concatenates, a larger value favors small files."""

    valid_source: str | None = None
    """Validation data, like `source`."""

    valid_target: str | None = None
    """Validation data, like `target`."""

    hold_out: int = Field(0, ge=0)
    """Without validation files: use this many random training pairs for validation instead of training."""

    source_column: str = Field("source", min_length=1)
    """Column of the source in a file of pairs: its name, or in TSV and CSV its number, from 1."""

    target_column: str = Field("target", min_length=1)
    """Column of the target in a file of pairs: its name, or in TSV and CSV its number, from 1."""

    normalization: Normalization = "nfc"
    """Unicode normalization of all text: nfc, nfkc or none."""

    tokenizer: TokenizerSetting = "bpe"
    """Tokenizer: bpe, unigram, char, byte, word, or the path of a SentencePiece model (FILE.model)."""

    target_tokenizer: TokenizerSetting | None = None
    """Tokenizer of the target; by default the same as `tokenizer`."""

    vocabulary: int = Field(8000, ge=5, le=1_000_000)
    """Maximum vocabulary size, one vocabulary for both sides or one each (joint); includes four special tokens."""

    target_vocabulary: int | None = Field(None, ge=5, le=1_000_000)
    """Maximum vocabulary size of the target; by default the same as `vocabulary`."""

    joint: bool | None = None
    """Share one vocabulary between source and target; default for equal tokenizers and sizes, except char and word."""

    min_frequency: int = Field(2, ge=1)
    """Minimum frequency of a word (word) or a merge (bpe) in the vocabulary."""

    max_length: int = Field(256, ge=1)
    """Drop training pairs with more tokens than this on either side."""

    max_ratio: float = Field(0.0, ge=0.0, allow_inf_nan=False)
    """Drop training pairs whose longer side has more than this many times the tokens of the other; 0 keeps all."""

    tokenizer_pairs: int = Field(2_000_000, ge=1)
    """Train the tokenizer on at most this many training pairs, taken at even intervals."""

    bpe_dropout: float = Field(0.0, ge=0, lt=1)
    """In training, undo each bpe merge with this probability, recursively (similar to BPE-dropout)."""

    cache: str | None = None
    """Folder of the token cache; by default $SACCADE_CACHE, else $XDG_CACHE_HOME/saccade or ~/.cache/saccade."""

    workers: int | None = Field(None, ge=1)
    """Tokenization processes; by default one per core. Results do not depend on it."""

    batch_tokens: int = Field(4096, ge=1)
    """Maximum tokens per batch: pairs x the longest source or target, padding included; lower it to save memory."""

    @property
    def source_kind(self) -> TokenizerKind:
        """The kind of the source tokenizer."""
        return kind_of(self.tokenizer)

    @property
    def target_setting(self) -> str:
        """The tokenizer setting of the target, with the default resolved."""
        return self.target_tokenizer or self.tokenizer

    @property
    def target_kind(self) -> TokenizerKind:
        """The kind of the target tokenizer."""
        return kind_of(self.target_setting)

    @property
    def sentencepiece_models(self) -> tuple[str, ...]:
        """The paths of the SentencePiece models of source and target."""
        return tuple(path for path in (self.tokenizer, self.target_setting) if path.endswith(MODEL_SUFFIX))

    @property
    def target_size(self) -> int:
        """The maximum size of the target vocabulary, with the default resolved."""
        return self.target_vocabulary or self.vocabulary

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target share one tokenizer, with the default of `joint` resolved."""
        if self.joint is not None:
            return self.joint
        return self._sides_agree and self.source_kind in JOINT_BY_DEFAULT

    @property
    def _sides_agree(self) -> bool:
        return self.target_setting == self.tokenizer and self.target_size == self.vocabulary

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        if self.joint and not self._sides_agree:
            raise ValueError("joint shares one vocabulary: leave out target-tokenizer and target-vocabulary")
        if self.target and not self.source:
            raise ValueError("target is given without source: give the source file too")
        if self.target and len(self.target) != len(self.source):
            raise ValueError(
                f"{len(self.source)} source files but {len(self.target)} target files: give one for each, or none"
            )
        if self.weights and len(self.weights) != len(self.source):
            raise ValueError(f"{len(self.source)} source files but {len(self.weights)} weights: give one for each")
        if self.weights and self.temperature != 1:
            raise ValueError("weights and temperature exclude each other: give one of them")
        if self.valid_target and not self.valid_source:
            raise ValueError("valid-target is given without valid-source: give the source file too")
        if self.bpe_dropout and "bpe" not in (self.source_kind, self.target_kind):
            raise ValueError("bpe-dropout needs a bpe tokenizer: set bpe-dropout to 0")
        if self.max_ratio and self.max_ratio < 1:
            raise ValueError("max-ratio (longer side / shorter side) must be 0 (off) or at least 1")
        return self
