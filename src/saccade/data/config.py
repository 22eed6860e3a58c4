"""Settings of the data: where it is, how it becomes tokens, how tokens become batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from saccade.config import Config

TokenizerKind = Literal["bpe", "unigram", "char", "byte", "word"]
Normalization = Literal["nfc", "nfkc", "none"]

JOINT_BY_DEFAULT: frozenset[TokenizerKind] = frozenset({"bpe", "unigram", "byte"})


def one_or_many(value: Any) -> Any:
    """A single path as a list of one."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(one_or_many)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataConfig(Config):
    """Files to tokens to batches."""

    source: Paths = ()
    """Files of source lines; without `target`, files of pairs (TSV, JSONL or Parquet)."""

    target: Paths = ()
    """Files of target lines, one file for each of `source`, with one line for each of its lines."""

    weights: tuple[Weight, ...] = ()
    """One number a source file: its share of the examples; by default as many as it has."""

    temperature: float = Field(1.0, ge=0.05, allow_inf_nan=False)
    """Without weights: shares go by size^(1/temperature); 1 is plain concatenation, more favours the small files."""

    valid_source: str | None = None
    """Validation data, given like `source`."""

    valid_target: str | None = None
    """Validation data, given like `target`."""

    hold_out: int = Field(0, ge=0)
    """Without validation files: take this many training examples as validation data, never parting equal sources."""

    source_column: str = Field("source", min_length=1)
    """Where the source stands in a file of pairs: a column's name, in TSV also its number from 1."""

    target_column: str = Field("target", min_length=1)
    """Where the target stands in a file of pairs: a column's name, in TSV also its number from 1."""

    normalization: Normalization = "nfc"
    """Unicode normalisation of all text."""

    tokenizer: TokenizerKind = "bpe"
    """What a token is."""

    target_tokenizer: TokenizerKind | None = None
    """What a token of the target is; by default as `tokenizer`."""

    vocabulary: int = Field(8000, ge=5, le=1_000_000)
    """The most tokens a vocabulary may have, the four symbols included."""

    target_vocabulary: int | None = Field(None, ge=5, le=1_000_000)
    """The same for the target; by default as `vocabulary`."""

    joint: bool | None = None
    """One vocabulary for both sides; by default if both ask for the same, and that is bpe, unigram or byte."""

    min_frequency: int = Field(2, ge=1)
    """Words (word) and merges (bpe) seen less often are left out of the vocabulary."""

    max_length: int = Field(256, ge=1)
    """Training pairs with more tokens on either side are dropped and reported."""

    max_ratio: float = Field(0.0, ge=0.0, allow_inf_nan=False)
    """Training pairs with more than this many times the tokens of one side on the other are dropped; 0 keeps all."""

    tokenizer_pairs: int = Field(2_000_000, ge=1)
    """The vocabulary is learnt from at most this many training pairs, taken evenly over all of them."""

    split: float = Field(0.0, ge=0, lt=1)
    """In training each bpe token is split, with this probability, into the two it was merged from, and those again."""

    cache: str | None = None
    """Folder of the token cache; by default $SACCADE_CACHE, else saccade in $XDG_CACHE_HOME or in ~/.cache."""

    workers: int | None = Field(None, ge=1)
    """Processes that tokenise; by default one a core. They change no result."""

    batch_tokens: int = Field(4096, ge=1)
    """The most tokens in a batch: rows times the longest of either side, padding included."""

    @property
    def target_kind(self) -> TokenizerKind:
        """The target's tokenizer, with the default resolved."""
        return self.target_tokenizer or self.tokenizer

    @property
    def target_size(self) -> int:
        """The target's vocabulary size, with the default resolved."""
        return self.target_vocabulary or self.vocabulary

    @property
    def shares_vocabulary(self) -> bool:
        """Whether both sides use one tokenizer, with the default of `joint` resolved."""
        if self.joint is not None:
            return self.joint
        return self._sides_agree and self.tokenizer in JOINT_BY_DEFAULT

    @property
    def _sides_agree(self) -> bool:
        return self.target_kind == self.tokenizer and self.target_size == self.vocabulary

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        if self.joint and not self._sides_agree:
            raise ValueError("joint means one vocabulary: leave out target-tokenizer and target-vocabulary")
        if self.target and not self.source:
            raise ValueError("target is given without source: name the file of source lines")
        if self.target and len(self.target) != len(self.source):
            raise ValueError(
                f"{len(self.source)} source files have {len(self.target)} target files: give one for each, or none"
            )
        if self.weights and len(self.weights) != len(self.source):
            raise ValueError(f"{len(self.source)} source files have {len(self.weights)} weights: give one for each")
        if self.weights and self.temperature != 1:
            raise ValueError("weights and temperature both decide the shares of the files: give one of them")
        if self.valid_target and not self.valid_source:
            raise ValueError("valid-target is given without valid-source: name the file of source lines")
        if self.split and "bpe" not in (self.tokenizer, self.target_kind):
            raise ValueError("split undoes merges, and only the bpe tokenizer has any: set split to 0")
        if self.max_ratio and self.max_ratio < 1:
            raise ValueError("max-ratio is longer side over shorter side: 0 (off), or 1 and more")
        return self
