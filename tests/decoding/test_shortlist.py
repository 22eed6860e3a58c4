from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from contracts.registered_models import build_model
from fake_model import SYMBOLS, FakeModel, fake_memory, fake_source
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Memory, OutputProjection, VocabularySizes
from saccade.ops.dispatch import without_kernels

VOCABULARY = 40
SOURCES = [[4, 5, 6], [9], [7, 8, 9, 10, 11], [12, 13], [20, 21, 22]]
ALLOWED = [[4, 7, 9, 30], [5, 6, 8], list(range(4, VOCABULARY)), [39, 38], [10, 20, 30, 11, 12, 13, 14]]
GREEDY, BEAM = DecodingConfig(beam=1, max_length=6), DecodingConfig(beam=3, nbest=2, max_length=6)


class RestrictedModel(FakeModel):
    """The fake model with probability 0 for all but some tokens: the reference of a shortlist."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(VOCABULARY, sharpness=2.0)
        kept = [SYMBOLS.pad, SYMBOLS.begin, SYMBOLS.end, SYMBOLS.unknown, *tokens]
        self.output_bias = torch.full_like(self.output_bias, -math.inf)
        self.output_bias[kept] = 0.0


class WithoutProduct(FakeModel):
    """A model whose logits are not a matrix product."""

    def output_projection(self, outputs: Tensor) -> OutputProjection | None:  # type: ignore[override]
        return None


def model() -> FakeModel:
    return FakeModel(VOCABULARY, sharpness=2.0)


def memory_of(rows: list[list[int]]) -> Memory:
    return fake_memory(model(), rows)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-5)


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", [FakeModel, WithoutProduct])
def test_a_search_with_a_shortlist_equals_one_with_a_restricted_model(kind, config):
    found = search(kind(VOCABULARY, sharpness=2.0), SearchRequest(memory_of(SOURCES), config, SYMBOLS, allowed=ALLOWED))
    for row, tokens in enumerate(ALLOWED):
        [expected] = search(RestrictedModel(tokens), SearchRequest(memory_of(SOURCES[row : row + 1]), config, SYMBOLS))
        assert_same(found[row], expected)
        assert all(set(each.tokens) <= set(tokens) for each in found[row])


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_a_shortlist_of_the_full_vocabulary_changes_nothing(config):
    full = [range(VOCABULARY)] * len(SOURCES)
    found = search(model(), SearchRequest(memory_of(SOURCES), config, SYMBOLS, allowed=full))
    for one, other in zip(found, search(model(), SearchRequest(memory_of(SOURCES), config, SYMBOLS)), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_results_do_not_depend_on_the_batch(config):
    together = search(model(), SearchRequest(memory_of(SOURCES), config, SYMBOLS, allowed=ALLOWED))
    for row, hypotheses in enumerate(together):
        [alone] = search(
            model(), SearchRequest(memory_of(SOURCES[row : row + 1]), config, SYMBOLS, allowed=ALLOWED[row : row + 1])
        )
        assert_same(hypotheses, alone)


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_forced_tokens_need_not_be_on_the_shortlist(config):
    prefixes = [[31, 32], [], [33], [5], []]
    found = search(model(), SearchRequest(memory_of(SOURCES), config, SYMBOLS, prefixes=prefixes, allowed=ALLOWED))
    for hypotheses, prefix, tokens in zip(found, prefixes, ALLOWED, strict=True):
        for each in hypotheses:
            assert each.tokens[: len(prefix)] == tuple(prefix)
            assert set(each.tokens[len(prefix) :]) <= {*tokens, *prefix}
    assert any(each.tokens for hypotheses in found for each in hypotheses)


def test_an_empty_shortlist_allows_only_the_end_symbol():
    found = search(model(), SearchRequest(memory_of(SOURCES[:2]), BEAM, SYMBOLS, allowed=[[], []]))
    assert [[each.tokens for each in hypotheses] for hypotheses in found] == [[()], [()]]


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_shortlists_with_and_without_kernels(config):
    real = build_model(("transformer", {"norm": "pre"}), VocabularySizes(VOCABULARY, VOCABULARY, joint=True)).eval()
    memory = real.encode(fake_source(SOURCES))
    allowed = [[*tokens[:2]] for tokens in ALLOWED]  # fewer than the beam is wide
    found = search(real, SearchRequest(memory, config, SYMBOLS, allowed=allowed))
    with without_kernels():
        expected = search(real, SearchRequest(memory, config, SYMBOLS, allowed=allowed))
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
