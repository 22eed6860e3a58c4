"""The most probable tokens of each row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.ops.arguments import (
    address,
    needs_gradient,
    require_indices,
    require_same_dtype_and_device,
    require_shape,
    require_tokens,
)
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.kernel_library import kernel

LAYERS = 8  # the reference folds a row into this many layers
MIN_FOLD = 8  # but only if a layer has at least this many times `count` columns


class AllowedTokens(NamedTuple):
    """Lists of token ids, and the list that each row of logits is restricted to."""

    row: Tensor  # (N,) index of the list
    starts: Tensor  # (lists + 1,) offset of each list in `tokens`, and the end of the last one
    tokens: Tensor  # (sum of the lengths,) ids, ascending within a list


def top_k(
    logits: Tensor, count: int, suppressed: Sequence[int] = (), allowed: AllowedTokens | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (N, count) of the most probable tokens of logits (N, V), best first.

    The kernel overwrites the logits. `suppressed` ids are excluded, but stay in the normalization. With `allowed`, the
    probabilities are normalized over the allowed tokens of a row.
    """
    require_same_dtype_and_device("top_k", logits=logits)
    require_shape("top_k", "logits", logits, None, None)
    vocabulary = logits.size(1)
    if not 1 <= count <= vocabulary:
        raise ValueError(f"top_k: {count} tokens of a vocabulary of {vocabulary}")
    require_tokens("top_k", "suppressed", suppressed, vocabulary)
    if allowed is not None:
        check_allowed(allowed, logits)
    if not runs_on_kernel(logits) or not logits.is_contiguous() or needs_gradient(logits):
        return top_k_reference(logits, count, suppressed, allowed)
    values, ids = logits.new_empty(len(logits), count), logits.new_empty(len(logits), count, dtype=torch.int64)
    forbidden = torch.tensor(list(suppressed), dtype=torch.int64, device=logits.device)
    outputs = len(forbidden), address(forbidden), count, address(values), address(ids)
    if allowed is None:
        kernel("top_k", *logits.shape, address(logits), *outputs)
    else:
        lists = [part.contiguous() for part in allowed]
        kernel("top_k_within", *logits.shape, address(logits), *map(address, lists), *outputs)
    return values, ids


def check_allowed(allowed: AllowedTokens, logits: Tensor) -> None:
    """Raise unless every row has a list, and every list has ascending ids of the vocabulary."""
    rows, vocabulary = logits.shape
    require_shape("top_k", "allowed.row", allowed.row, rows)
    require_shape("top_k", "allowed.starts", allowed.starts, None)
    require_shape("top_k", "allowed.tokens", allowed.tokens, None)
    require_indices("top_k", "allowed.row", allowed.row, len(allowed.starts) - 1, device=logits.device)
    require_indices("top_k", "allowed.starts", allowed.starts, len(allowed.tokens) + 1, device=logits.device)
    require_indices("top_k", "allowed.tokens", allowed.tokens, vocabulary, device=logits.device)
    starts = allowed.starts
    if not len(starts) or int(starts[0]) != 0 or int(starts[-1]) != len(allowed.tokens):
        raise ValueError("top_k: the lists of allowed tokens must begin at 0 and end with the last token")
    if bool((starts.diff() < 1).any()):
        raise ValueError("top_k: every list of allowed tokens must have at least one token")
    ascending = allowed.tokens.diff() > 0
    ascending[starts[1:-1] - 1] = True  # from one list to the next
    if not bool(ascending.all()):
        raise ValueError("top_k: the allowed tokens of a list must be ascending")


def top_k_reference(
    logits: Tensor, count: int, suppressed: Sequence[int], allowed: AllowedTokens | None
) -> tuple[Tensor, Tensor]:
    """The PyTorch reference of `top_k`."""
    if allowed is not None:
        logits = logits.masked_fill(disallowed_mask(allowed, logits.size(1)), -torch.inf)
    log_probabilities = logits.log_softmax(dim=-1, dtype=torch.float32)
    if suppressed:
        log_probabilities[:, list(suppressed)] = -torch.inf
    return largest(log_probabilities, count)


def disallowed_mask(allowed: AllowedTokens, vocabulary: int) -> Tensor:
    """(N, V), True where a row must not use a token."""
    row, starts, tokens = allowed
    counts = starts.diff()[row]  # (N,)
    rows = torch.arange(len(row), device=counts.device).repeat_interleave(counts)
    within = torch.arange(len(rows), device=counts.device) - (counts.cumsum(0) - counts)[rows]
    mask = torch.ones(len(row), vocabulary, dtype=torch.bool, device=counts.device)
    mask[rows, tokens[starts[row][rows] + within]] = False
    return mask


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and columns (N, count) of the largest entries of each row of (N, V), descending.

    A row is folded into a few layers; the largest entries are in the columns with the largest maxima over the layers. A
    maximum is cheap and leaves a fraction of the row to sort: twice as fast as `topk` of the full row.
    """
    if count == 1:
        maximum = values.max(dim=1, keepdim=True)
        return maximum.values, maximum.indices
    rows, width = values.shape
    columns = width // LAYERS
    if columns < MIN_FOLD * count:
        best = values.topk(count)
        return best.values, best.indices
    folded = values[:, : LAYERS * columns].view(rows, LAYERS, columns)
    tops = folded.amax(1).topk(count, sorted=False).indices  # (N, count)
    layers = torch.arange(LAYERS, device=tops.device)[:, None] * columns
    rest = torch.arange(LAYERS * columns, width, device=tops.device).expand(rows, -1)
    candidates = torch.cat([(tops[:, None] + layers).flatten(1), rest], dim=1)  # (N, LAYERS·count + a few)
    found, columns_of = values.gather(1, candidates).topk(count)
    return found, candidates.gather(1, columns_of)
