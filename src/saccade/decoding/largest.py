"""The most probable tokens of each row of logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saccade.csrc.library import kernel, usable
from saccade.decoding.constraints import Allowed, forbid_, keep_to_

LAYERS = 8  # a row of probabilities is folded into so many layers to find its largest,
FOLDED = 8  # if that leaves at least this many times as many columns as are wanted


def most_probable(
    logits: Tensor, count: int, never: Sequence[int], allowed: Allowed | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and tokens (N, count) of the best of each row of logits (N, V), falling; `never` left out.

    Where only some tokens are `allowed`, the probabilities are those among them. The logits are written over.
    """
    if not usable(logits) or not logits.is_contiguous():
        log_probabilities = keep_to_(logits, allowed).log_softmax(dim=-1, dtype=torch.float32)
        return largest(forbid_(log_probabilities, never), count)
    values, places = logits.new_empty(len(logits), count), logits.new_empty(len(logits), count, dtype=torch.int64)
    forbidden = torch.tensor(list(never), dtype=torch.int64)
    made = len(forbidden), forbidden.data_ptr(), count, values.data_ptr(), places.data_ptr()
    if allowed is None:
        kernel("top_k", *logits.shape, logits.data_ptr(), *made)
    else:
        lists = allowed.lists.value
        own = allowed.row.data_ptr(), lists.starts.data_ptr(), lists.columns.data_ptr()
        kernel("top_k_within", *logits.shape, logits.data_ptr(), *own, *made)
    return values, places


def largest(log_probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and places of the `count` largest of each row of (N, V), falling.

    The largest entries are in the columns whose maxima are largest, when a row is folded into a few layers: a maximum
    is cheap, and then a fraction of the row is left to sort. Twice as fast as to look at the whole row.
    """
    if count == 1:
        best = log_probabilities.max(dim=1, keepdim=True)
        return best.values, best.indices
    rows, vocabulary = log_probabilities.shape
    columns = vocabulary // LAYERS
    if columns < FOLDED * count:
        values, places = log_probabilities.topk(count)
        return values, places
    folded = log_probabilities[:, : LAYERS * columns].view(rows, LAYERS, columns)
    tops = folded.amax(1).topk(count, sorted=False).indices  # (N, count)
    layers = torch.arange(LAYERS, device=tops.device)[:, None] * columns
    rest = torch.arange(LAYERS * columns, vocabulary, device=tops.device).expand(rows, -1)
    places = torch.cat([(tops[:, None] + layers).flatten(1), rest], dim=1)  # (N, LAYERS·count + a few)
    found = log_probabilities.gather(1, places).topk(count)
    return found.values, places.gather(1, found.indices)
