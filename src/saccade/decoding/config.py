"""The settings of a search."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from saccade.config import Config

LengthPenalty = Literal["gnmt", "plain", "none"]
ReplaceUnknown = Literal["none", "source", "lexicon"]

LongSource = Literal["split", "truncate"]

MAX_BEAM = 10_000
TOKENS_AT_ONCE = 8192  # source tokens, with several hypotheses per sentence


class DecodingConfig(Config):
    """Settings of search, sampling and output constraints."""

    beam: int = Field(default=5, ge=1, le=MAX_BEAM)
    """Beam size: hypotheses kept per sentence; 1 is greedy search. Not used for sampling."""
    nbest: int = Field(default=1, ge=1, le=MAX_BEAM)
    """Number of hypotheses to return per input, best first; with `sample`, number of independent samples."""

    keep_duplicates: bool = False
    """List outputs with equal text, i.e. other tokens of the same string, each; by default only the best is listed."""

    length_penalty: LengthPenalty = "gnmt"
    """Length normalization of log-probabilities: gnmt ((5 + length) / 6)^alpha, plain length^alpha, or none."""
    length_alpha: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Exponent of the length penalty; a larger value favors longer outputs."""
    coverage_beta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the coverage penalty, which favors outputs that attend to the full input. Beam search only."""

    sample: bool = False
    """Sample outputs from the model's distribution instead of searching for the best."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Sampling only: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: int = Field(default=0, ge=0)
    """Sampling only: sample from the k most probable tokens; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sampling only: sample from the smallest set of tokens with this total probability; 1 is off."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Sampling only: random seed; an output depends only on the seed and its input, not on the batch."""

    max_source: int | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum number of input tokens; a longer input is split. 0: no limit; default: the longest training source."""
    long_source: LongSource = "split"
    """What to do with a longer input: split (at sentence ends, else between words; outputs are joined) or truncate."""

    min_length: int = Field(default=0, ge=0, le=1_000_000)
    """Minimum number of output tokens, without the end-of-sequence token."""
    max_length: int = Field(default=0, ge=0, le=1_000_000)
    """Maximum number of output tokens, with the end-of-sequence token; 0 derives it from the input length."""
    max_length_factor: float | None = Field(default=None, ge=0, le=1000, allow_inf_nan=False)
    """With `max_length` 0: output tokens allowed per input token; by default measured on the training data."""
    max_length_offset: int = Field(default=10, ge=1, le=1_000_000)
    """With `max_length` 0: output tokens allowed in addition."""

    allow_unknown: bool = False
    """Whether an output may contain the unknown token."""
    replace_unknown: ReplaceUnknown = "none"
    """Replace unknown tokens: none, source (by the source word with most attention), lexicon (by its translation)."""
    batch_tokens: int = Field(default=0, ge=0)
    """Input tokens per batch, including padding. 0: 8192, or 24576 with one hypothesis per sentence."""

    @property
    def tokens_at_once(self) -> int:
        """Source tokens, including padding, to search at once."""
        single = (self.nbest if self.sample else self.beam) == 1
        return self.batch_tokens or (3 if single else 1) * TOKENS_AT_ONCE

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        """Raise an error for settings that contradict each other or would have no effect."""
        if not self.sample and self.nbest > self.beam:
            raise ValueError(
                f"a beam of {self.beam} cannot give the {self.nbest} best: raise beam to {self.nbest}, or lower nbest"
            )
        sampling = {"temperature": self.temperature != 1, "top-k": self.top_k != 0, "top-p": self.top_p != 1}
        for name, is_set in sampling.items():
            if is_set and not self.sample:
                raise ValueError(f"{name} only acts on sampling: set sample to true, or leave {name} out")
        if self.coverage_beta and (self.sample or self.beam == 1):
            raise ValueError(
                "coverage-beta ranks the hypotheses of a beam: set beam above 1 without sample, or coverage-beta to 0"
            )
        if self.max_length and self.min_length > self.max_length:
            raise ValueError(
                f"min-length {self.min_length} is above max-length {self.max_length}: lower one or raise the other"
            )
        return self

    @property
    def for_search(self) -> DecodingConfig:
        """The settings of the search itself: to replace unknown symbols, it must be allowed to output them."""
        return self if self.replace_unknown == "none" else self.model_copy(update={"allow_unknown": True})
