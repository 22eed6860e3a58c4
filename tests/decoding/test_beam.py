from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_model import SYMBOLS, FakeModel, empty_memory, fake_memory
from saccade.decoding.beam import beam_search
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import constraints_of
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.search import SearchRequest, search
from saccade.errors import SaccadeError
from saccade.interface import Memory, reorder, select
from saccade.ops.top_k import LAYERS, largest

SOURCES = [[4, 5, 6], [9], [7, 8, 9, 10, 11], [12, 13], [20, 21, 22]]
LIMIT = 4
TOKENS = (4, 5, 6)  # all tokens of a vocabulary of 7 that are not special symbols
EVERYTHING = 3**LIMIT + 3**3  # more than the candidates of any step


def divisor(length: int, config: DecodingConfig) -> float:
    penalties = {"gnmt": (5 + length) / 6, "plain": length, "none": 1}
    return penalties[config.length_penalty] ** config.length_alpha


def reference_hypothesis(
    model: FakeModel, memory: Memory, symbols: tuple[int, ...], config: DecodingConfig
) -> Hypothesis:
    """One output sequence for one source, scored by decoding it at once and by equation 14 of Wu et al."""
    decoded = model.decode(torch.tensor([[SYMBOLS.begin, *symbols[:-1]]]), memory, record=True)
    log_probabilities = model.logits(decoded.outputs[0]).log_softmax(dim=-1)
    each = [log_probabilities[position, symbol].item() for position, symbol in enumerate(symbols)]
    score = sum(each) / divisor(len(symbols), config)
    if config.coverage_beta:
        [last] = [record for record in decoded.attention if record.kind == "cross" and record.layer == 1]
        coverage = last.weights[0].mean(dim=0).sum(dim=0)[memory.mask[0]]  # (S,)
        score += config.coverage_beta * sum(math.log(min(total, 1.0)) for total in coverage.tolist())
    finished = symbols[-1] == SYMBOLS.end
    return Hypothesis(symbols[:-1] if finished else symbols, sum(each), score, tuple(each), finished)


def exhaustive(model: FakeModel, memory: Memory, config: DecodingConfig) -> list[Hypothesis]:
    """Every sequence that a search may return, best first: the finished ones, then those cut off at the limit."""
    finished = [
        reference_hypothesis(model, memory, (*tokens, SYMBOLS.end), config)
        for length in range(config.min_length, LIMIT)
        for tokens in itertools.product(TOKENS, repeat=length)
    ]
    cut = [reference_hypothesis(model, memory, tokens, config) for tokens in itertools.product(TOKENS, repeat=LIMIT)]
    return [*sorted(finished, key=lambda each: -each.score), *sorted(cut, key=lambda each: -each.score)]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis], *, tolerance: float = 1e-4) -> None:
    assert [(each.tokens, each.finished) for each in found] == [(each.tokens, each.finished) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert one.log_probability == pytest.approx(other.log_probability, abs=tolerance)
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=tolerance)


@pytest.mark.parametrize("coverage_beta", [0.0, 0.4])
@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 1.0), ("gnmt", 0.6), ("plain", 1.0), ("none", 1.0)])
def test_a_beam_of_full_width_is_exhaustive(penalty, alpha, coverage_beta):
    model = FakeModel(seed=5)
    memory = fake_memory(model, SOURCES[:2])
    config = DecodingConfig(
        beam=EVERYTHING,
        nbest=60,  # more than the 40 sequences that finish: the rest are cut off
        length_penalty=penalty,
        length_alpha=alpha,
        coverage_beta=coverage_beta,
        max_length=LIMIT,
    )
    for row, found in enumerate(search(model, SearchRequest(memory, config, SYMBOLS))):
        assert_same(found, exhaustive(model, select(memory, torch.tensor([row])), config)[:60])


@pytest.mark.parametrize("seed", range(6))
def test_a_beam_of_full_width_with_early_stop_finds_the_best_sequences(seed):
    model = FakeModel(seed=seed, end_bias=1.0)
    memory = fake_memory(model, SOURCES)
    config = DecodingConfig(beam=EVERYTHING, nbest=2, max_length=LIMIT, min_length=1)
    for row, found in enumerate(search(model, SearchRequest(memory, config, SYMBOLS))):
        assert_same(found, exhaustive(model, select(memory, torch.tensor([row])), config)[:2])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beam=st.integers(1, 6),
    nbest=st.integers(1, 6),
    penalty=st.sampled_from(["gnmt", "plain", "none"]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 1.5]),
    coverage_beta=st.sampled_from([0.0, 0.3]),
    end_bias=st.sampled_from([0.0, 1.0, 3.0]),
    min_length=st.integers(0, 3),
    prefixed=st.booleans(),
)
def test_the_early_stop_does_not_change_results(
    seed, beam, nbest, penalty, alpha, coverage_beta, end_bias, min_length, prefixed
):
    model = FakeModel(vocabulary=12, seed=seed, end_bias=end_bias)
    memory = fake_memory(model, SOURCES)
    config = DecodingConfig(
        beam=max(beam, nbest, 2 if coverage_beta else 1),
        nbest=nbest,
        length_penalty=penalty,
        length_alpha=alpha,
        coverage_beta=coverage_beta,
        min_length=min_length,
        max_length_factor=1.0,
        max_length_offset=4,
    )
    constraints = constraints_of(memory.mask, config, SYMBOLS, [[4, 5], [], [6], [], [7, 8, 9]] if prefixed else None)
    stopped = beam_search(model, memory, constraints, config, SYMBOLS)
    early = len(model.steps)
    complete = beam_search(model, memory, constraints, config, SYMBOLS, early_stop=False)
    assert early <= len(model.steps) - early
    for one, other in zip(stopped, complete, strict=True):
        assert_same(one, other, tolerance=1e-5)


def test_the_early_stop_saves_steps():
    model = FakeModel(vocabulary=12, end_bias=4.0)
    memory = fake_memory(model, SOURCES)
    search(model, SearchRequest(memory, DecodingConfig(length_penalty="none", max_length=50), SYMBOLS))
    assert len(model.steps) < 15


def reference_beam(model: FakeModel, memory: Memory, config: DecodingConfig, limit: int) -> list[Hypothesis]:
    """Textbook beam search of one sentence: every candidate is decoded from its first token."""
    live: list[tuple[int, ...]] = [()]
    finished: list[Hypothesis] = []
    for _ in range(limit):
        candidates = [
            reference_hypothesis(model, memory, (*tokens, token), config)
            for tokens in live
            for token in (SYMBOLS.end, *TOKENS)
        ]
        best = sorted(candidates, key=lambda each: -each.log_probability)[: 2 * config.beam]
        finished += [each for each in best if each.finished]
        live = [each.tokens for each in best if not each.finished][: config.beam]
    cut = [reference_hypothesis(model, memory, tokens, config) for tokens in live]
    ordered = [*sorted(finished, key=lambda each: -each.score), *sorted(cut, key=lambda each: -each.score)]
    return ordered[: config.nbest]


@pytest.mark.parametrize("coverage_beta", [0.0, 0.3])
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_narrow_beams_equal_textbook_beam_search(beam, coverage_beta):
    for seed in range(3):
        model = FakeModel(seed=seed, sharpness=0.7)
        memory = fake_memory(model, SOURCES)
        config = DecodingConfig(beam=beam, nbest=beam, coverage_beta=coverage_beta, max_length=6)
        for row, found in enumerate(search(model, SearchRequest(memory, config, SYMBOLS))):
            assert_same(found, reference_beam(model, select(memory, torch.tensor([row])), config, limit=6))


def test_every_hypothesis_starts_with_its_prefix_and_the_best_come_first():
    model = FakeModel(vocabulary=12, seed=2)
    prefixes = [(4, 5, 6), (), (11,), (SYMBOLS.unknown, 4), (5, 5, 5, 5)]
    config = DecodingConfig(beam=4, nbest=4, max_length=9)
    results = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS, prefixes=prefixes))
    for prefix, found in zip(prefixes, results, strict=True):
        assert len(found) == 4
        assert len({each.tokens for each in found}) == 4
        assert all(each.tokens[: len(prefix)] == prefix for each in found)
        assert [(each.finished, each.score) for each in found] == sorted(
            ((each.finished, each.score) for each in found), reverse=True
        )


def test_a_forced_prefix_runs_with_one_hypothesis_per_sentence():
    model = FakeModel(vocabulary=12)
    config = DecodingConfig(beam=4, max_length=6, min_length=6)
    search(model, SearchRequest(fake_memory(model, SOURCES[:2]), config, SYMBOLS, prefixes=[(4, 5, 6), (7, 8)]))
    assert model.steps == [2, 2, 2, 8, 8, 8]


def test_finished_sentences_leave_the_batch():
    model = FakeModel(vocabulary=12)
    config = DecodingConfig(beam=3, max_length_factor=1.0, max_length_offset=2, length_penalty="none", min_length=3)
    results = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    assert model.steps[:2] == [5, 15]
    assert model.steps[-1] < 15
    for source, found in zip(SOURCES, results, strict=True):
        [alone] = search(model, SearchRequest(fake_memory(model, [source]), config, SYMBOLS))
        assert_same(found, alone)


def test_the_state_is_not_copied_while_hypotheses_keep_their_order(monkeypatch):
    model = FakeModel(vocabulary=6, seed=1, end_bias=-50.0)  # two tokens, and an improbable end symbol
    memory = fake_memory(model, SOURCES[:1])
    config = DecodingConfig(beam=2, max_length=5)
    copied = []

    def counting(state, rows, memory_rows):
        copied.append(type(state).__name__)
        return reorder(state, rows, memory_rows)

    monkeypatch.setattr("saccade.decoding.beam.reorder", counting)
    search(model, SearchRequest(memory, config, SYMBOLS, prefixes=[[4, 4, 4, 4]]))
    assert copied == []
    search(model, SearchRequest(memory, config, SYMBOLS))  # without a prefix they are reordered
    assert "FakeState" in copied


def test_keys_of_the_memory_are_copied_only_when_a_sentence_leaves_the_batch(monkeypatch):
    model = FakeModel(vocabulary=6, seed=1, end_bias=-50.0)
    selections = []

    def counting(state, rows, memory_rows):
        selections.append(memory_rows)
        return reorder(state, rows, memory_rows)

    monkeypatch.setattr("saccade.decoding.beam.reorder", counting)
    search(model, SearchRequest(fake_memory(model, SOURCES[:2]), DecodingConfig(beam=2, max_length=5), SYMBOLS))
    assert selections
    assert all(rows is None for rows in selections)  # all sentences have the same limit, and none ends before


@pytest.mark.parametrize("vocabulary", [640, 647, 8000])
@pytest.mark.parametrize("case", ["random", "one column", "tail", "ties", "one possible"])
def test_largest_equals_topk(vocabulary, case):
    count = 10
    rows = torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    columns = vocabulary // LAYERS
    if case == "one column":
        rows[:, 3::columns][:, :LAYERS] += 50
    elif case == "tail":
        rows[:, -2:] += 50
    elif case == "ties":
        rows = rows.round()
    elif case == "one possible":
        rows[:, :-1] = -math.inf
    values, indices = largest(rows, count)
    assert torch.equal(values, rows.topk(count).values)
    assert torch.equal(rows.gather(1, indices), values)
    assert all(len(set(row)) == count for row in indices.tolist())


def test_the_early_stop_does_not_change_results_with_a_large_vocabulary():
    model = FakeModel(vocabulary=700, seed=3, end_bias=4.0)
    memory = fake_memory(model, SOURCES)
    config = DecodingConfig(beam=5, nbest=3, max_length_factor=1.0, max_length_offset=4)
    constraints = constraints_of(memory.mask, config, SYMBOLS, None)
    stopped = beam_search(model, memory, constraints, config, SYMBOLS)
    complete = beam_search(model, memory, constraints, config, SYMBOLS, early_stop=False)
    for one, other in zip(stopped, complete, strict=True):
        assert_same(one, other, tolerance=1e-5)


def test_attention_is_recorded_only_for_coverage(monkeypatch):
    model = FakeModel()
    memory = fake_memory(model, SOURCES)
    calls: list[int] = []
    monkeypatch.setattr(model, "attention", lambda outputs, memory: calls.append(len(outputs)) or ())
    search(model, SearchRequest(memory, DecodingConfig(), SYMBOLS))
    assert not calls
    with pytest.raises(SaccadeError):
        search(model, SearchRequest(memory, DecodingConfig(coverage_beta=0.1), SYMBOLS))
    assert calls == [len(SOURCES)]


def test_a_coverage_penalty_needs_cross_attention():
    model = FakeModel(attends=False)
    with pytest.raises(SaccadeError) as error:
        search(model, SearchRequest(fake_memory(model, SOURCES), DecodingConfig(coverage_beta=0.1), SYMBOLS))
    assert "decoding.coverage-beta" in str(error.value.hint)


def test_a_language_model_is_searched_without_a_source():
    model = FakeModel()
    [one, other] = search(model, SearchRequest(empty_memory(2), DecodingConfig(max_length=5, nbest=3), SYMBOLS))
    assert len(one) == 3
    assert_same(one, other)
