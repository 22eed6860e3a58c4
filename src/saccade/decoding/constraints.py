"""Constraints on outputs: suppressed tokens, lengths, forced prefixes and shortlists.

The log-probabilities of tokens that are not allowed become -inf. Allowed tokens keep the value of the model, so a
constrained hypothesis has exactly the log-probability that the model gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.interface import Shared, select
from saccade.ops.top_k import AllowedTokens, disallowed_mask
from saccade.symbols import Symbols

DEFAULT_LENGTH_FACTOR = 2.0  # output tokens per source position, unless measured on the training data
FREE = -1  # in prefixes: a position without a forced token


class TokenLists(NamedTuple):
    """Concatenated lists of token ids; each list is ascending and begins with the special symbols."""

    starts: Tensor  # (lists + 1,) offset of each list in `tokens`, and the end of the last one
    tokens: Tensor  # (sum of the lengths,)


class AllowedTokensPerRow(NamedTuple):
    """The tokens that each row may output."""

    row: Tensor  # (B,) number of the list of each row
    lists: Shared[TokenLists]

    def disallowed(self, vocabulary: int) -> Tensor:
        """Return a mask (B, V), True for tokens that a row must not output."""
        return disallowed_mask(AllowedTokens(self.row, *self.lists.value), vocabulary)


def allowed_tokens(allowed: AllowedTokensPerRow | None) -> AllowedTokens | None:
    """Return the allowed tokens as an argument of `top_k`."""
    return None if allowed is None else AllowedTokens(allowed.row, *allowed.lists.value)


class Constraints(NamedTuple):
    """The constraints of each row of a batch; batch-first, so that `select` takes rows."""

    limits: Tensor  # (B,) maximum length, with the end symbol
    prefixes: Tensor  # (B, P) forced tokens, then FREE
    allowed: AllowedTokensPerRow | None = None  # None: all tokens

    def take(self, rows: NDArray[np.int64]) -> Constraints:
        """Return the constraints of some rows."""
        return select(self, torch.from_numpy(rows).to(self.limits.device))

    @property
    def only_lengths_differ(self) -> bool:
        """Whether the length limits are the only constraints that differ between rows."""
        return self.allowed is None and self.prefixes.size(1) == 0


def constraints_of(
    mask: Tensor,
    config: DecodingConfig,
    symbols: Symbols,
    prefixes: Sequence[Sequence[int]] | None,
    *,
    max_target_positions: int | None = None,
    indices: Sequence[int] | None = None,
) -> Constraints:
    """Return the constraints of every row of a source mask (B, S); an invalid prefix is an error.

    `max_target_positions` is the limit of the model; `indices` are the rows' positions in the user's input, for errors.
    `mask` is True at real positions.
    """
    limits = length_limits(mask, config)
    if max_target_positions is not None:
        limits = limits.clamp(max=max_target_positions)
    if prefixes is None:
        return Constraints(limits, limits.new_empty(len(limits), 0))
    if len(prefixes) != len(limits):
        raise ValueError(f"{len(prefixes)} prefixes for {len(limits)} rows")
    indices = range(len(limits)) if indices is None else indices
    for index, prefix, limit in zip(indices, prefixes, limits.tolist(), strict=True):
        check_prefix(prefix, index, limit, symbols)
    return Constraints(limits, pad_prefixes(prefixes).to(limits.device))


def length_limits(mask: Tensor, config: DecodingConfig) -> Tensor:
    """Return the maximum output length (B,) of each row of a source mask (B, S).

    At its limit a hypothesis is cut off and marked unfinished: with a forced end it would look complete.
    `mask` is True at real positions.
    """
    if config.max_length:
        return torch.full((mask.size(0),), config.max_length, device=mask.device)
    if mask.size(1) == 0:
        raise SaccadeError(
            "the output length has no limit: without a source it cannot be derived from the source length",
            hint="set decoding.max-length",
        )
    factor = DEFAULT_LENGTH_FACTOR if config.max_length_factor is None else config.max_length_factor
    limits = (mask.sum(dim=1) * factor).long() + config.max_length_offset
    return limits.clamp(min=config.min_length + 1)


def check_prefix(prefix: Sequence[int], index: int, limit: int, symbols: Symbols) -> None:
    """Raise an error for a prefix that is too long or contains special symbols."""
    if len(prefix) > limit:
        raise SaccadeError(
            f"the forced prefix of input {index + 1} has {len(prefix)} tokens, an output at most {limit}",
            hint="set a larger decoding.max-length",
        )
    if not {symbols.pad, symbols.begin, symbols.end}.isdisjoint(prefix):
        raise ValueError(f"the forced prefix of input {index + 1} contains pad, begin or end")


def pad_prefixes(prefixes: Sequence[Sequence[int]]) -> Tensor:
    """Return ragged prefixes as one tensor (B, P), padded with FREE."""
    longest = max(map(len, prefixes), default=0)
    return torch.tensor([[*prefix, *[FREE] * (longest - len(prefix))] for prefix in prefixes], dtype=torch.long).view(
        len(prefixes), longest
    )


def constrain_(
    log_probabilities: Tensor, position: int, prefixes: Tensor, config: DecodingConfig, symbols: Symbols
) -> Tensor:
    """Set log-probabilities (N, V) at a position to -inf for suppressed tokens, and for all but the forced ones.

    In place: a copy of all logits takes a tenth of the time of the output layer. Prefixes are (N, P).
    """
    if position >= prefixes.size(1):
        return suppress_(log_probabilities, suppressed_tokens(position, config, symbols))
    # Before the in-place operation, because a forced token may be a suppressed one, such as unknown.
    forced = keep_forced(log_probabilities, prefixes[:, position])
    free = suppress_(log_probabilities, suppressed_tokens(position, config, symbols))
    return torch.where(prefixes[:, position, None] == FREE, free, forced)


def mask_disallowed_(logits: Tensor, allowed: AllowedTokensPerRow | None) -> Tensor:
    """Set all but the allowed tokens of logits (N, V) to -inf, in place."""
    return logits if allowed is None else logits.masked_fill_(allowed.disallowed(logits.size(1)), -math.inf)


def suppressed_tokens(position: int, config: DecodingConfig, symbols: Symbols) -> list[int]:
    """Return the special symbols that no hypothesis may contain at a position."""
    suppressed = [symbols.pad, symbols.begin]
    if not config.allow_unknown:
        suppressed.append(symbols.unknown)
    if position < config.min_length:
        suppressed.append(symbols.end)
    return suppressed


def suppress_(log_probabilities: Tensor, tokens: Sequence[int]) -> Tensor:
    """Set tokens to -inf in every row of (N, V), in place."""
    for token in tokens:
        log_probabilities[:, token] = -math.inf
    return log_probabilities


def keep_forced(log_probabilities: Tensor, tokens: Tensor) -> Tensor:
    """Return a copy of (N, V) with -inf for all but one token (N,) of each row; for FREE, all are -inf."""
    vocabulary = torch.arange(log_probabilities.size(1), device=tokens.device)
    return log_probabilities.masked_fill(vocabulary != tokens[:, None], -math.inf)
