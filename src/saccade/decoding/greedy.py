"""Greedy search: the most probable token at every position."""

from __future__ import annotations

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.rollout import roll_out
from saccade.decoding.stop_flag import StopFlag
from saccade.interface import Decoder, Memory
from saccade.symbols import Symbols


def greedy_search(
    model: Decoder,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    *,
    scores: bool = True,
    stop: StopFlag | None = None,
) -> list[list[Hypothesis]]:
    """Return the greedy hypothesis of each row of the memory; log-probabilities may be missing unless `scores`."""
    return [[best] for best in roll_out(model, memory, constraints, config, symbols, scores=scores, stop=stop)]
