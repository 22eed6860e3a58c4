"""What an output may contain: symbols that are never written, lengths, and forced prefixes.

The functions put -inf in place of the log-probabilities that are not allowed. What is allowed keeps the model's own
value, so a constrained hypothesis has exactly the log-probability that the model gives it.
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

UNTRAINED_FACTOR = 2.0  # symbols allowed for each position of the input where no training data says better
FREE = -1  # stands in a row of prefixes where nothing is forced


class Lists(NamedTuple):
    """Columns, those of one list together and rising; every list begins with those of the symbols."""

    starts: Tensor  # (lists + 1,) where each begins, and where the last one ends
    columns: Tensor  # (all of them,)


class Allowed(NamedTuple):
    """The columns of the vocabulary that each row may write."""

    row: Tensor  # (B,) which list is its own
    lists: Shared[Lists]

    def forbidden(self, vocabulary: int) -> Tensor:
        """(B, V), True where a row may not write."""
        return disallowed_mask(AllowedTokens(self.row, *self.lists.value), vocabulary)


def allowed_tokens(allowed: Allowed | None) -> AllowedTokens | None:
    """The allowed tokens as `top_k` takes them."""
    return None if allowed is None else AllowedTokens(allowed.row, *allowed.lists.value)


class Constraints(NamedTuple):
    """What each row of a batch must keep to; batch-first, so that `select` takes its rows."""

    limits: Tensor  # (B,) the most symbols, the end counted
    prefixes: Tensor  # (B, P) forced tokens, then FREE
    allowed: Allowed | None = None  # what each may write; None: everything

    def of(self, rows: NDArray[np.int64]) -> Constraints:
        """Those of some rows."""
        return select(self, torch.from_numpy(rows).to(self.limits.device))

    @property
    def on_length_only(self) -> bool:
        """Whether all rows may write alike."""
        return self.allowed is None and self.prefixes.size(1) == 0


def constraints_of(
    mask: Tensor,
    config: DecodingConfig,
    symbols: Symbols,
    prefixes: Sequence[Sequence[int]] | None,
    *,
    longest: int | None = None,
    indices: Sequence[int] | None = None,
) -> Constraints:
    """The constraints of every row of a mask (B, S), or an error that says which prefix cannot be.

    `longest` is the most that the model can decode; `indices` are the rows' places in the user's input.
    """
    limits = length_limits(mask, config)
    if longest is not None:
        limits = limits.clamp(max=longest)
    if prefixes is None:
        return Constraints(limits, limits.new_empty(len(limits), 0))
    if len(prefixes) != len(limits):
        raise ValueError(f"{len(prefixes)} prefixes for {len(limits)} rows")
    places = range(len(limits)) if indices is None else indices
    for place, prefix, limit in zip(places, prefixes, limits.tolist(), strict=True):
        check_prefix(prefix, place, limit, symbols)
    return Constraints(limits, padded(prefixes).to(limits.device))


def length_limits(mask: Tensor, config: DecodingConfig) -> Tensor:
    """The most symbols that each row may have: (B, S) to (B,).

    At its limit a hypothesis is cut off and marked unfinished: an end forced on it would pass off a part as a whole.
    """
    if config.max_length:
        return torch.full((mask.size(0),), config.max_length, device=mask.device)
    if mask.size(1) == 0:
        raise SaccadeError(
            "the length of an output has no limit: a model without an input cannot take it from the input's length",
            do="set decoding.max-length",
        )
    factor = UNTRAINED_FACTOR if config.max_length_factor is None else config.max_length_factor
    limits = (mask.sum(dim=1) * factor).long() + config.max_length_offset
    return limits.clamp(min=config.min_length + 1)


def check_prefix(prefix: Sequence[int], place: int, limit: int, symbols: Symbols) -> None:
    """Refuse a prefix that no hypothesis could start with."""
    if len(prefix) > limit:
        raise SaccadeError(
            f"the forced prefix of input {place + 1} has {len(prefix)} tokens, an output at most {limit}",
            do="set a larger decoding.max-length",
        )
    if not {symbols.pad, symbols.begin, symbols.end}.isdisjoint(prefix):
        raise ValueError(f"the forced prefix of input {place + 1} contains pad, begin or end")


def padded(prefixes: Sequence[Sequence[int]]) -> Tensor:
    """Ragged prefixes as one (B, P) tensor."""
    longest = max(map(len, prefixes), default=0)
    return torch.tensor([[*prefix, *[FREE] * (longest - len(prefix))] for prefix in prefixes], dtype=torch.long).view(
        len(prefixes), longest
    )


def allow(
    log_probabilities: Tensor, position: int, prefixes: Tensor, config: DecodingConfig, symbols: Symbols
) -> Tensor:
    """The log-probabilities (N, V) of what may stand at a position, for rows with these prefixes (N, P).

    Works in place: a copy of all logits costs a tenth of the output layer's time.
    """
    if position >= prefixes.size(1):
        return forbid_(log_probabilities, never_written(position, config, symbols))
    # Before the in-place step, since a forced token may be one that is otherwise never written, such as unknown.
    forced = only(log_probabilities, prefixes[:, position])
    free = forbid_(log_probabilities, never_written(position, config, symbols))
    return torch.where(prefixes[:, position, None] == FREE, free, forced)


def keep_to_(logits: Tensor, allowed: Allowed | None) -> Tensor:
    """Set all but the allowed tokens of (N, V) to -inf, in place."""
    return logits if allowed is None else logits.masked_fill_(allowed.forbidden(logits.size(1)), -math.inf)


def never_written(position: int, config: DecodingConfig, symbols: Symbols) -> list[int]:
    """The symbols that no hypothesis may have at a position."""
    never = [symbols.pad, symbols.begin]
    if not config.allow_unknown:
        never.append(symbols.unknown)
    if position < config.min_length:
        never.append(symbols.end)
    return never


def forbid_(log_probabilities: Tensor, tokens: Sequence[int]) -> Tensor:
    """Set the given tokens to -inf in every row of (N, V), in place."""
    for token in tokens:
        log_probabilities[:, token] = -math.inf
    return log_probabilities


def only(log_probabilities: Tensor, tokens: Tensor) -> Tensor:
    """A copy of (N, V) that keeps one token (N,) of each row; a FREE one keeps nothing."""
    vocabulary = torch.arange(log_probabilities.size(1), device=tokens.device)
    return log_probabilities.masked_fill(vocabulary != tokens[:, None], -math.inf)
