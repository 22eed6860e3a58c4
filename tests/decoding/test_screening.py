from __future__ import annotations

import math

import pytest
import torch

from contracts.registered_models import build_model, make_batch, registered_models
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.screening import MIN_ROWS, quantize_for_screening
from saccade.decoding.search import SearchRequest, search
from saccade.interface import OutputProjection
from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import QuantizedParameter
from saccade.ops.kernel_library import level
from saccade.symbols import Symbols

LENGTHS = [1 + row % 7 for row in range(MIN_ROWS + 5)]
CONFIGS = [
    DecodingConfig(beam=1, max_length=8),
    DecodingConfig(beam=1, max_length_factor=1.5, max_length_offset=1, min_length=3, allow_unknown=True),
]


def outputs(found: list[list[Hypothesis]]) -> list[tuple[tuple[int, ...], bool]]:
    return [(best.tokens, best.finished) for [best] in found]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("subject", registered_models())
def test_greedy_search_without_scores_finds_the_same_tokens(subject, config):
    model, source = build_model(subject), make_batch(LENGTHS, LENGTHS).source
    with torch.inference_mode():
        memory = model.encode(source)
    scored = search(model, SearchRequest(memory, config, Symbols()))
    unscored = search(model, SearchRequest(memory, config, Symbols(), scores=False))
    assert outputs(unscored) == outputs(scored)
    assert all(math.isfinite(best.score) for [best] in scored)
    if level() not in (None, "v1"):
        assert all(math.isnan(best.score) and best.token_log_probabilities == () for [best] in unscored)
    with without_kernels():
        assert outputs(search(model, SearchRequest(memory, config, Symbols(), scores=False))) == outputs(scored)


def test_prefixes_and_allowed_tokens():
    model, source = build_model(("transformer", {})), make_batch(LENGTHS, LENGTHS).source
    with torch.inference_mode():
        memory = model.encode(source)
    config, rows = DecodingConfig(beam=1, max_length=6), range(len(LENGTHS))
    constraints = {"prefixes": [(5 + row % 9,) for row in rows], "allowed": [[7, 8, 9, 10 + row % 9] for row in rows]}
    scored = search(model, SearchRequest(memory, config, Symbols(), **constraints))
    unscored = search(model, SearchRequest(memory, config, Symbols(), **constraints, scores=False))
    assert outputs(unscored) == outputs(scored)
    for row, [best] in enumerate(scored):
        assert best.tokens[:1] == constraints["prefixes"][row]


def test_nan_ends_its_own_sentence():
    model, source = build_model(("transformer", {})), make_batch(LENGTHS, LENGTHS).source
    with torch.inference_mode():
        memory = model.encode(source)
    config = DecodingConfig(beam=1, max_length=6)
    expected = search(model, SearchRequest(memory, config, Symbols(), scores=False))
    with torch.inference_mode():
        memory.states[3] = math.nan
    found = search(model, SearchRequest(memory, config, Symbols(), scores=False))
    assert found[3] == [IMPOSSIBLE]
    assert outputs(found[:3] + found[4:]) == outputs(expected[:3] + expected[4:])


def test_which_output_layers_are_screened(int8_required):
    rows, table = torch.randn(MIN_ROWS, 8), torch.randn(10, 8)
    assert quantize_for_screening(None) is None
    assert quantize_for_screening(OutputProjection(rows[: MIN_ROWS - 1], table, None)) is None
    assert quantize_for_screening(OutputProjection(rows.double(), table.double(), None)) is None
    with without_kernels():
        assert quantize_for_screening(OutputProjection(rows, table, None)) is None


def test_the_screen_of_an_int8_output_layer_is_not_exact(int8_required):
    rows, table = torch.randn(600, 24), torch.randn(4000, 24)
    exact, approximate = (
        quantize_for_screening(OutputProjection(rows, table, None)),
        quantize_for_screening(OutputProjection(rows, QuantizedParameter.of(table), None)),
    )
    assert exact.exact
    assert not approximate.exact
    for screen in (exact, approximate):
        expected = argmax_int8(rows, screen.weight, (3, 5), exact=screen.exact)
        for found, other in zip(screen.best(rows, (3, 5)), expected, strict=True):
            assert torch.equal(found, other)
