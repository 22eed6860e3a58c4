"""Untrained Transformers, sources and searches for the tests of plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contracts.registered_models import build_model
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import constraints_of
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Memory, Source, VocabularySizes
from saccade.models.transformer import Transformer
from saccade.ops.dispatch import without_kernels
from saccade.plans.transformer_plan import TransformerPlan
from saccade.symbols import Symbols

SYMBOLS = Symbols()
SIZES = VocabularySizes(23, 23, joint=True)


def sharp_model(changes: dict[str, Any], seed: int = 0, sizes: VocabularySizes = SIZES) -> Transformer:
    """An untrained model whose probabilities are far from uniform."""
    model = build_model(("transformer", changes), sizes, seed)
    with torch.no_grad():
        model.output.table.mul_(6.0)
    return model


def source_of(rows: list[list[int]]) -> Source:
    longest = max(map(len, rows))
    values = torch.tensor([[*row, *[SYMBOLS.pad] * (longest - len(row))] for row in rows])
    return Source(values, values != SYMBOLS.pad)


def sentences(count: int, seed: int = 0) -> list[list[int]]:
    """Sources of 1 to 9 tokens in any order."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 9, (count,), generator=generator).tolist()
    return [[*torch.randint(4, 23, (length,), generator=generator).tolist(), SYMBOLS.end] for length in lengths]


def request_of(given: Source | Memory, config: DecodingConfig, **options: Any) -> SearchRequest:
    return SearchRequest(given, config, SYMBOLS, **options)


@torch.inference_mode()
def compiled_search(plan: TransformerPlan, request: SearchRequest) -> list[list[Hypothesis]] | None:
    """The hypotheses of a plan's compiled search; None if it does not support the request."""
    constraints = constraints_of(
        request.given.mask,
        request.config,
        SYMBOLS,
        request.prefixes,
        max_target_positions=plan.max_target_positions,
        indices=request.indices,
    )
    return plan.search(request, constraints)


def python_search(model: Transformer, source: Source, config: DecodingConfig) -> list[list[Hypothesis]]:
    """The hypotheses of the Python search with the PyTorch references, which share no code with the compiled search."""
    with without_kernels():
        return search(model, request_of(source, config))


def tokens_of(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in hypotheses] for hypotheses in found]


def assert_equal_hypotheses(found: list[list[Hypothesis]] | None, expected: list[list[Hypothesis]]) -> None:
    """Check that tokens are equal, and scores up to rounding."""
    assert found is not None, "the plan does not support this search"
    for hypotheses, expected_hypotheses in zip(found, expected, strict=True):
        assert [(each.tokens, each.finished) for each in hypotheses] == [
            (each.tokens, each.finished) for each in expected_hypotheses
        ]
        for one, other in zip(hypotheses, expected_hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
            assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-4)
