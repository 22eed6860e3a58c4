"""Greedy search: at every position the most probable token."""

from __future__ import annotations

from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import Constraints
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.rollout import roll_out
from saccade.interface import Decodes, Memory
from saccade.symbols import Symbols


def greedy_search(
    model: Decodes,
    memory: Memory,
    constraints: Constraints,
    config: DecodingConfig,
    symbols: Symbols,
    *,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """For each row its one greedy hypothesis, without log-probabilities if nobody asks for `scores`."""
    return [[best] for best in roll_out(model, memory, constraints, config, symbols, scores=scores)]
