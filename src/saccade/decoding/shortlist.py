"""Vocabulary shortlists: only tokens that some sentence of the batch may output have logits.

The output layer is a matrix product over the full vocabulary, half of the time of a small model. A batch computes the
logits of the tokens that at least one of its sentences may output; each sentence is then restricted to its own
shortlist, so that its outputs do not depend on the batch. Probabilities are normalized over that shortlist.

Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation"; docs/papers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.decoding.constraints import AllowedTokensPerRow, TokenLists
from saccade.decoding.hypothesis import Hypothesis
from saccade.interface import Decoded, Decoder, Memory, OutputProjection, Shared, Step
from saccade.ops.linear import linear
from saccade.symbols import Symbols


class Shortlisted:
    """A model with a subset of its target vocabulary; a local id is the index of a token in that subset."""

    def __init__(self, model: Decoder, tokens: Tensor) -> None:
        """`tokens` (V',) is the subset, ascending; the special symbols come first, so their ids do not change."""
        self.model = model
        self.tokens = tokens
        self.max_target_positions = model.max_target_positions
        self.projection: OutputProjection | None = None  # with the weight rows of the subset; built at the first call

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode a prefix (B, T) of local ids."""
        return self.model.decode(self.tokens[prefix], memory, record=record)

    def start(self, memory: Memory) -> Any:
        """Return the state before the first token."""
        return self.model.start(memory)

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position; token (N,) holds local ids."""
        return self.model.step(self.tokens[token], state, memory, record=record)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V') of the subset from outputs (..., D)."""
        projection = self.output_projection(outputs)
        if projection is None:
            return self.model.logits(outputs).index_select(-1, self.tokens)
        return linear(*projection)

    def output_projection(self, outputs: Tensor) -> OutputProjection | None:
        """Return the operands of the last matrix projection, with the weight rows of the subset."""
        full = self.model.output_projection(outputs)
        if full is None:
            return None
        if self.projection is None:
            bias = None if full.bias is None else full.bias.index_select(0, self.tokens)
            self.projection = OutputProjection(full.inputs, full.weight.index_select(0, self.tokens), bias)
        return self.projection._replace(inputs=full.inputs)


class BatchVocabulary:
    """The union of the shortlists of a batch; a local id is the index of a token in this union."""

    def __init__(
        self, allowed: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None, symbols: Symbols
    ) -> None:
        """`allowed` is the shortlist of each sentence; special symbols and forced tokens are added."""
        forced = [()] * len(allowed) if prefixes is None else prefixes
        always = astuple(symbols)
        shortlists = [np.unique([*always, *tokens, *prefix]) for tokens, prefix in zip(allowed, forced, strict=True)]
        concatenated = np.concatenate(shortlists)
        self.tokens = torch.from_numpy(np.unique(concatenated))  # (V',) ascending
        starts = torch.tensor([0, *np.cumsum([len(shortlist) for shortlist in shortlists]).tolist()])
        self.lists = TokenLists(starts, torch.searchsorted(self.tokens, torch.from_numpy(concatenated)))

    def allowed(self, device: torch.device) -> AllowedTokensPerRow:
        """Return the shortlist of each sentence, in local ids."""
        lists = TokenLists(*(tensor.to(device) for tensor in self.lists))
        return AllowedTokensPerRow(torch.arange(len(lists.starts) - 1, device=device), Shared(lists))

    def local_ids(self, tokens: Sequence[int]) -> list[int]:
        """Return the local ids of tokens."""
        ids: list[int] = torch.searchsorted(self.tokens, torch.tensor(list(tokens), dtype=torch.long)).tolist()
        return ids

    def hypothesis(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return a hypothesis of local ids, with the ids of the full vocabulary."""
        return replace(hypothesis, tokens=tuple(self.tokens[list(hypothesis.tokens)].tolist()))
