from __future__ import annotations

import random

import pytest
import torch

from fake_model import SYMBOLS, FakeModel, empty_memory, fake_memory
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import IMPOSSIBLE, Hypothesis
from saccade.decoding.search import SearchRequest, search
from saccade.errors import SaccadeError
from saccade.interface import Decoder, Encoder

SOURCES = [[random.Random(row).randrange(4, 99) for _ in range(1 + row % 6)] for row in range(12)]
SEARCHES = {
    "greedy": DecodingConfig(beam=1),
    "beam": DecodingConfig(beam=4, nbest=3),
    "coverage": DecodingConfig(beam=4, nbest=3, coverage_beta=0.3),
    "sampling": DecodingConfig(sample=True, nbest=3),
    "truncated sampling": DecodingConfig(sample=True, nbest=2, top_k=6, top_p=0.9, temperature=1.3),
}
every_search = pytest.mark.parametrize("config", SEARCHES.values(), ids=SEARCHES.keys())


def model_of_words() -> FakeModel:
    return FakeModel(vocabulary=15, seed=2, end_bias=1.0)


def rounded(found: list[Hypothesis]) -> list[tuple[tuple[int, ...], bool, float]]:
    return [(each.tokens, each.finished, round(each.score, 4)) for each in found]


def test_the_fake_model_has_the_model_interface():
    assert isinstance(FakeModel(), Encoder)
    assert isinstance(FakeModel(), Decoder)


@every_search
def test_results_do_not_depend_on_the_batch(config):
    model = model_of_words()
    together = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    assert len({len(best.tokens) for best, *_ in together}) > 2, "this test needs rows that end at different steps"
    for index, source in enumerate(SOURCES):
        [alone] = search(model, SearchRequest(fake_memory(model, [source]), config, SYMBOLS, indices=[index]))
        assert rounded(alone) == rounded(together[index])


@every_search
def test_results_come_in_the_order_of_the_input(config):
    model = model_of_words()
    together = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    order = random.Random(0).sample(range(len(SOURCES)), len(SOURCES))
    shuffled = search(
        model, SearchRequest(fake_memory(model, [SOURCES[row] for row in order]), config, SYMBOLS, indices=order)
    )
    assert [rounded(found) for found in shuffled] == [rounded(together[row]) for row in order]


@every_search
def test_lengths_stay_between_their_limits(config):
    model = model_of_words()
    bounded = config.model_copy(update={"min_length": 3, "max_length": 5})
    for found in search(model, SearchRequest(fake_memory(model, SOURCES), bounded, SYMBOLS)):
        for each in found:
            assert 3 <= len(each.tokens) <= 5
            assert each.finished == (len(each.token_log_probabilities) == len(each.tokens) + 1)
            assert len(each.token_log_probabilities) <= 5


@every_search
def test_equal_minimum_and_maximum_lengths_fix_the_length(config):
    model = model_of_words()
    exact = config.model_copy(update={"min_length": 4, "max_length": 4})
    for found in search(model, SearchRequest(fake_memory(model, SOURCES), exact, SYMBOLS)):
        assert all(len(each.tokens) == 4 and not each.finished for each in found)


@every_search
def test_the_unknown_symbol_is_in_outputs_only_if_allowed(config):
    model = model_of_words()
    model.output_bias[SYMBOLS.unknown] = 2.0
    memory = fake_memory(model, SOURCES)

    def unknown(allowed: bool) -> bool:
        results = search(model, SearchRequest(memory, config.model_copy(update={"allow_unknown": allowed}), SYMBOLS))
        return any(SYMBOLS.unknown in each.tokens for found in results for each in found)

    assert unknown(allowed=True)
    assert not unknown(allowed=False)


@every_search
def test_special_tokens_are_left_out_and_log_probabilities_add_up(config):
    model = model_of_words()
    model.output_bias[[SYMBOLS.pad, SYMBOLS.begin]] = 3.0
    for found in search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS)):
        assert 1 <= len(found) <= config.nbest
        for each in found:
            assert {SYMBOLS.pad, SYMBOLS.begin, SYMBOLS.end}.isdisjoint(each.tokens)
            assert each.log_probability == pytest.approx(sum(each.token_log_probabilities), abs=1e-4)
            assert len(each.token_log_probabilities) == len(each.tokens) + each.finished


@every_search
def test_a_forced_token_of_probability_zero_has_no_hypothesis(config):
    model = model_of_words()
    model.output_bias[9] = -torch.inf
    memory = fake_memory(model, SOURCES[:3])
    possible, impossible, later = search(model, SearchRequest(memory, config, SYMBOLS, prefixes=[[4], [9], [4, 5, 9]]))
    assert all(each.log_probability > -torch.inf for each in possible)
    assert set(impossible) == set(later) == {IMPOSSIBLE}


@every_search
def test_a_half_precision_model_is_normalized_in_full_precision(config, monkeypatch):
    model = FakeModel(vocabulary=15, seed=2, end_bias=1.0, dtype=torch.bfloat16)
    exact = FakeModel(vocabulary=15, seed=2, end_bias=1.0)
    monkeypatch.setattr(exact, "logits", lambda outputs: model.logits(outputs).double())
    results = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    expected = search(exact, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    for found, other in zip(results, expected, strict=True):
        assert [each.tokens for each in found] == [each.tokens for each in other]
        for one, two in zip(found, other, strict=True):
            assert one.token_log_probabilities == pytest.approx(two.token_log_probabilities, abs=1e-6)


@pytest.mark.parametrize("config", [SEARCHES[name] for name in ("greedy", "beam", "sampling")])
def test_a_model_without_an_input(config):
    model = model_of_words()
    with pytest.raises(SaccadeError):
        search(model, SearchRequest(empty_memory(2), config, SYMBOLS))
    limited = config.model_copy(update={"max_length": 6})
    results = search(model, SearchRequest(empty_memory(2), limited, SYMBOLS, prefixes=[[4, 5], [6]]))
    assert [found[0].tokens[:1] for found in results] == [(4,), (6,)]


@every_search
def test_an_empty_batch_has_no_results(config):
    assert search(FakeModel(), SearchRequest(empty_memory(0), config, SYMBOLS)) == []


def test_the_number_of_indices_must_be_the_number_of_sentences():
    model = model_of_words()
    with pytest.raises(ValueError, match=r"\b2\b.*\b1\b"):
        search(model, SearchRequest(fake_memory(model, [[4]]), DecodingConfig(), SYMBOLS, indices=[0, 1]))


@every_search
def test_a_search_runs_in_inference_mode(config, monkeypatch):
    model = model_of_words()
    modes = []
    logits = model.logits

    def watched(outputs: torch.Tensor) -> torch.Tensor:
        modes.append(torch.is_inference_mode_enabled())
        return logits(outputs)

    monkeypatch.setattr(model, "logits", watched)
    search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    assert modes
    assert all(modes)
