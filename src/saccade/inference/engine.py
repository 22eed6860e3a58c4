"""What searches: ids in, hypotheses out. Whatever comes before and after does not know which engine it was."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import torch

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.search import SearchRequest, search
from saccade.inference.batching import Reading, even_batches, longest, source_from
from saccade.interface import Translates
from saccade.parallel_map import parallel_map_unordered, worker_count
from saccade.symbols import Symbols

EngineName = Literal["auto", "torch", "ctranslate2"]
Precision = Literal["float32", "int8"]

LEAST_SHARE = 256  # tokens that are worth a batch of their own

Found = Generator[tuple[int, list[Hypothesis]], None, None]
"""The place of a source and its hypotheses, best first, in any order and as they come; empty sources do not."""


@dataclass(frozen=True)
class Work:
    """Some sources to search with the same settings."""

    sources: Sequence[Reading]
    settings: DecodingConfig  # as the search reads them
    indices: Sequence[int]  # the sources' places in the user's input: they key the random numbers
    prefixes: Sequence[Sequence[int]] | None = None
    allowed: Sequence[Sequence[int]] | None = None  # the only tokens that each may be translated to
    scores: bool = True  # whether anybody looks at the log-probabilities

    def part(self, rows: Sequence[int]) -> Work:
        """The same for some of the sources."""
        return replace(
            self,
            sources=[self.sources[row] for row in rows],
            indices=[self.indices[row] for row in rows],
            prefixes=None if self.prefixes is None else [self.prefixes[row] for row in rows],
            allowed=None if self.allowed is None else [self.allowed[row] for row in rows],
        )


class Engine(Protocol):
    """Searches, at once or while the caller does something else."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def works_ahead(self) -> bool:
        """Whether work that has begun goes on while nobody waits for it."""

    def begin(self, work: Work) -> Callable[[], Found]:
        """Begin some work; what is returned waits for it."""


class TorchEngine:
    """Every model, every setting, every device: encode, then the search of `decoding`."""

    name = "torch"
    works_ahead = False

    def __init__(
        self,
        model: Callable[[], Translates],
        source_tokenizers: Sequence[Tokenizer],
        symbols: Symbols,
        device: torch.device,
    ) -> None:
        """The model is asked for when there is work: until then it may be on the disk."""
        self.model = model
        self.source_tokenizers = source_tokenizers
        self.symbols = symbols
        self.device = device

    def begin(self, work: Work) -> Callable[[], Found]:
        """Nothing runs before somebody waits for it."""
        return partial(self.decode, work)

    def decode(self, work: Work) -> Found:
        """All sources, in batches of like length, several side by side on a CPU."""
        model, batch_tokens = self.model(), work.settings.tokens_at_once

        def decode_batch(rows: list[int]) -> list[list[Hypothesis]]:
            part = work.part(rows)
            source = source_from(part.sources, self.source_tokenizers, self.device)
            return search(
                model,
                SearchRequest(
                    *(source, work.settings, self.symbols, part.prefixes, part.indices, part.allowed, work.scores)
                ),
            )

        lengths = [longest(source) for source in work.sources]
        workers = worker_count(batch_tokens, self.device)
        workers = max(1, min(workers, -(-sum(lengths) // LEAST_SHARE)))
        batches = even_batches(lengths, batch_tokens // workers, workers)
        with closing(parallel_map_unordered(decode_batch, batches, workers)) as ended:
            for place, several in ended:
                yield from zip(batches[place], several, strict=True)
