"""A shortlist: only the tokens that some sentence may write have logits.

The output layer is a product with a table of the whole vocabulary, half of a small model's work. A batch needs the rows
of those tokens that one of its sentences may write; each sentence is then kept to its own, so that it does not matter
which others are in the batch. Probabilities are those among the tokens of the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.decoding.constraints import Allowed, Lists
from saccade.decoding.hypothesis import Hypothesis
from saccade.interface import Decoded, Decodes, Memory, Product, Shared, Step
from saccade.ops.linear import linear
from saccade.symbols import Symbols


class Shortlisted:
    """A model with a part of its target vocabulary; a token is named by its place in that part."""

    def __init__(self, model: Decodes, tokens: Tensor) -> None:
        """`tokens` (V',) are those of the part, rising; the symbols are among them, so that theirs stay as they are."""
        self.model = model
        self.tokens = tokens
        self.longest = model.longest
        self.product: Product | None = None  # with the part of the table, once somebody has asked for logits

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """As the model does it."""
        return self.model.decode(self.tokens[prefix], memory, record=record)

    def start(self, memory: Memory) -> Any:
        """As the model does it."""
        return self.model.start(memory)

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        """As the model does it."""
        return self.model.step(self.tokens[token], state, memory, record=record)

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., D) to (..., V')."""
        found = self.output_product(outputs)
        if found is None:
            return self.model.logits(outputs).index_select(-1, self.tokens)
        return linear(*found)

    def output_product(self, outputs: Tensor) -> Product | None:
        """The model's, with fewer rows of its table."""
        whole = self.model.output_product(outputs)
        if whole is None:
            return None
        if self.product is None:
            bias = None if whole.bias is None else whole.bias.index_select(0, self.tokens)
            self.product = Product(whole.rows, whole.table.index_select(0, self.tokens), bias)
        return self.product._replace(rows=whole.rows)


class Part:
    """The tokens that a batch of sentences may write together, named by their places among these."""

    def __init__(
        self, allowed: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None, symbols: Symbols
    ) -> None:
        """`allowed` are the tokens of each sentence; symbols and forced tokens always are."""
        forced = [()] * len(allowed) if prefixes is None else prefixes
        always = astuple(symbols)
        own = [np.unique([*always, *some, *must]) for some, must in zip(allowed, forced, strict=True)]
        together = np.concatenate(own)
        self.tokens = torch.from_numpy(np.unique(together))  # (V',) rising
        starts = torch.tensor([0, *np.cumsum([len(some) for some in own]).tolist()])
        self.lists = Lists(starts, torch.searchsorted(self.tokens, torch.from_numpy(together)))

    def allowed(self, device: torch.device) -> Allowed:
        """What each sentence may write."""
        lists = Lists(*(part.to(device) for part in self.lists))
        return Allowed(torch.arange(len(lists.starts) - 1, device=device), Shared(lists))

    def places(self, tokens: Sequence[int]) -> list[int]:
        """Tokens by their places."""
        places: list[int] = torch.searchsorted(self.tokens, torch.tensor(list(tokens), dtype=torch.long)).tolist()
        return places

    def hypothesis(self, found: Hypothesis) -> Hypothesis:
        """A hypothesis of places as one of tokens."""
        return replace(found, tokens=tuple(self.tokens[list(found.tokens)].tolist()))
