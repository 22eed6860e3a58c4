from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from fake_model import SYMBOLS, FakeModel, fake_source
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Ensemble, Mean, concat_attention, shares_of
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.scoring import score
from saccade.decoding.search import SearchRequest, search
from saccade.errors import SaccadeError
from saccade.interface import Attention, Decoder, Encoder, Memory, Source, select

SOURCES = [[4, 5, 6], [9], [7, 8, 9, 10, 11], [12, 13], [20, 21, 22]]
OTHERS = [[30, 31], [32, 33, 34, 35, 36, 37], [38], [39, 40, 41], [42]]  # the same texts with another tokenizer
EXAMPLE = fake_source([[4]])
LIMIT = 4
TOKENS = (4, 5, 6)
SEARCHES = {
    "greedy": DecodingConfig(beam=1, max_length=9),
    "beam": DecodingConfig(beam=4, nbest=3, max_length=9),
    "coverage": DecodingConfig(beam=4, nbest=3, coverage_beta=0.3, max_length=9),
    "sampling": DecodingConfig(sample=True, nbest=3, max_length=9),
}
every_search = pytest.mark.parametrize("config", SEARCHES.values(), ids=SEARCHES.keys())
every_mean = pytest.mark.parametrize("mean", ["arithmetic", "geometric"])


def two_models(vocabulary: int = 7) -> list[FakeModel]:
    return [FakeModel(vocabulary, seed=1, sharpness=0.8), FakeModel(vocabulary, seed=2, width=12)]


def two_sources(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> Source:
    first = fake_source(one)
    return Source((first, fake_source(other)), first.mask)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-4) -> None:
    assert [(each.tokens, each.finished) for each in found] == [(each.tokens, each.finished) for each in expected]
    for one, two in zip(found, expected, strict=True):
        assert one.score == pytest.approx(two.score, abs=tolerance)
        assert one.token_log_probabilities == pytest.approx(two.token_log_probabilities, abs=tolerance)


def test_an_ensemble_has_the_model_interface():
    ensemble = Ensemble(two_models(), EXAMPLE)
    assert isinstance(ensemble, Encoder)
    assert isinstance(ensemble, Decoder)


@every_search
@every_mean
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_ensemble_of_one_model_is_that_model(config, mean, count):
    model = FakeModel(vocabulary=12, seed=3, end_bias=1.0)
    ensemble = Ensemble([model] * count, EXAMPLE, mean=mean, weights=[2.0, 3.0, 1.0][:count])
    expected = search(model, SearchRequest(model.encode(fake_source(SOURCES)), config, SYMBOLS))
    for source in (fake_source(SOURCES), Source((fake_source(SOURCES),) * count, fake_source(SOURCES).mask)):
        found = search(ensemble, SearchRequest(ensemble.encode(source), config, SYMBOLS))
        assert len(found) == len(SOURCES)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("weights", [None, [1.0, 1.0], [3.0, 1.0], [0.2, 0.6]])
@every_mean
def test_probabilities_are_the_weighted_mean(mean: Mean, weights):
    models = two_models()
    ensemble = Ensemble(models, EXAMPLE, mean=mean, weights=weights)
    prefix = torch.tensor([[SYMBOLS.begin, 4, 6]] * 2)
    source = two_sources(SOURCES[:2], OTHERS[:2])
    outputs = ensemble.decode(prefix, ensemble.encode(source)).outputs
    combined = ensemble.logits(outputs).double()

    one, two = (
        model.logits(model.decode(prefix, model.encode(own)).outputs).softmax(-1)
        for model, own in zip(models, source.values, strict=True)
    )
    first, second = weights or [0.5, 0.5]
    first, second = first / (first + second), second / (first + second)
    expected = first * one + second * two if mean == "arithmetic" else one**first * two**second
    expected = expected / expected.sum(-1, keepdim=True)
    assert torch.allclose(combined.exp(), expected, atol=1e-6)
    assert torch.allclose(combined.logsumexp(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-6), "normalized"


def test_probabilities_depend_on_the_kind_of_mean_and_on_the_weights():
    models = two_models()
    outputs = None
    found = []
    for mean, weights in (("arithmetic", None), ("geometric", None), ("arithmetic", [5.0, 1.0])):
        ensemble = Ensemble(models, EXAMPLE, mean=mean, weights=weights)
        outputs = ensemble.decode(torch.tensor([[SYMBOLS.begin]]), ensemble.encode(EXAMPLE)).outputs
        found.append(ensemble.logits(outputs).exp())
    assert not torch.allclose(found[0], found[1], atol=1e-2)
    assert not torch.allclose(found[0], found[2], atol=1e-2)


def test_a_token_that_one_member_excludes_is_possible_in_the_arithmetic_mean_only():
    models = two_models()
    models[1].output_bias[5] = -math.inf
    for mean, possible in (("arithmetic", True), ("geometric", False)):
        ensemble = Ensemble(models, EXAMPLE, mean=mean)
        outputs = ensemble.decode(torch.tensor([[SYMBOLS.begin]]), ensemble.encode(EXAMPLE)).outputs
        probability = ensemble.logits(outputs)[0, 0].exp()
        assert (probability[5] > 0) == possible
        assert probability.sum().item() == pytest.approx(1, abs=1e-6)


def reference_hypothesis(
    ensemble: Ensemble, memory: Memory, symbols: tuple[int, ...], config: DecodingConfig
) -> Hypothesis:
    """One output sequence for one source, scored by the mean of the members' probabilities."""
    prefix = torch.tensor([[SYMBOLS.begin, *symbols[:-1]]])
    probabilities = torch.zeros(len(symbols), dtype=torch.float64)
    positions = torch.arange(len(symbols))
    coverage = []
    for member, own, share in zip(ensemble.members, memory.extra.members, ensemble.shares, strict=True):
        decoded = member.decode(prefix, own, record=True)
        probabilities += share * member.logits(decoded.outputs[0]).softmax(-1)[positions, torch.tensor(symbols)]
        [last] = [record for record in decoded.attention if record.kind == "cross" and record.layer == 1]
        coverage.append(last.weights[0].mean(dim=0).sum(dim=0)[own.mask[0]])  # (S,)
    each = probabilities.log().tolist()
    total = sum(each) / ((5 + len(symbols)) / 6) ** config.length_alpha
    mean_coverage = torch.stack(coverage).mean(dim=0) if memory.extra.same_positions else coverage[0]
    total += config.coverage_beta * mean_coverage.clamp(max=1).log().sum().item()
    finished = symbols[-1] == SYMBOLS.end
    return Hypothesis(symbols[:-1] if finished else symbols, sum(each), total, tuple(each), finished)


@pytest.mark.parametrize("coverage_beta", [0.0, 0.4])
@pytest.mark.parametrize("source", [fake_source(SOURCES[:2]), two_sources(SOURCES[:2], OTHERS[:2])], ids=["one", "two"])
def test_a_beam_of_full_width_is_exhaustive(source, coverage_beta):
    ensemble = Ensemble(two_models(), EXAMPLE, weights=[2.0, 1.0])
    memory = ensemble.encode(source)
    config = DecodingConfig(beam=110, nbest=60, coverage_beta=coverage_beta, max_length=LIMIT)
    for row, found in enumerate(search(ensemble, SearchRequest(memory, config, SYMBOLS))):
        alone = select(memory, torch.tensor([row]))
        finished = [
            reference_hypothesis(ensemble, alone, (*tokens, SYMBOLS.end), config)
            for length in range(LIMIT)
            for tokens in itertools.product(TOKENS, repeat=length)
        ]
        cut = [
            reference_hypothesis(ensemble, alone, tokens, config) for tokens in itertools.product(TOKENS, repeat=LIMIT)
        ]
        by_score = [*sorted(finished, key=lambda each: -each.score), *sorted(cut, key=lambda each: -each.score)]
        assert_same(found, by_score[:60])


@every_search
@every_mean
def test_the_scorer_agrees_with_the_search(config, mean):
    ensemble = Ensemble(two_models(12), EXAMPLE, mean=mean)
    memory = ensemble.encode(two_sources(SOURCES, OTHERS))
    flat = [
        (row, each)
        for row, found in enumerate(search(ensemble, SearchRequest(memory, config, SYMBOLS)))
        for each in found
    ]
    targets = [[*each.tokens, *[SYMBOLS.end] * each.finished] for _, each in flat]
    width = max(map(len, targets))
    padded = torch.tensor([row + [SYMBOLS.pad] * (width - len(row)) for row in targets])
    scores = score(ensemble, select(memory, torch.tensor([row for row, _ in flat])), padded, SYMBOLS)
    for number, (_, each) in enumerate(flat):
        assert each.log_probability == pytest.approx(scores.log_probability[number].item(), abs=1e-4)
        scored = scores.token_log_probabilities[number][scores.mask[number]].tolist()
        assert each.token_log_probabilities == pytest.approx(scored, abs=1e-5)


@every_search
def test_results_do_not_depend_on_the_batch(config):
    ensemble = Ensemble(two_models(12), EXAMPLE)
    together = search(ensemble, SearchRequest(ensemble.encode(two_sources(SOURCES, OTHERS)), config, SYMBOLS))
    for row, found in enumerate(together):
        memory = ensemble.encode(two_sources(SOURCES[row : row + 1], OTHERS[row : row + 1]))
        [alone] = search(ensemble, SearchRequest(memory, config, SYMBOLS, indices=[row]))
        assert_same(found, alone)


def test_every_member_reads_its_own_source():
    ensemble = Ensemble(two_models(), EXAMPLE)
    one, two = (ensemble.encode(two_sources(SOURCES[:1], other[:1])) for other in (OTHERS, OTHERS[1:]))
    assert torch.equal(one.mask, two.mask)
    prefix = torch.tensor([[SYMBOLS.begin]])
    split = [torch.split(ensemble.decode(prefix, memory).outputs, ensemble.widths, dim=-1) for memory in (one, two)]
    assert torch.equal(split[0][0], split[1][0])
    assert not torch.allclose(split[0][1], split[1][1])


def test_the_maximum_length_is_the_smallest_of_the_members():
    models = [FakeModel(), FakeModel(), FakeModel()]
    assert Ensemble(models, EXAMPLE).max_target_positions is None
    models[1].max_target_positions, models[2].max_target_positions = 6, 4
    ensemble = Ensemble(models, EXAMPLE)
    assert ensemble.max_target_positions == 4
    [[best]] = search(
        ensemble, SearchRequest(ensemble.encode(EXAMPLE), DecodingConfig(min_length=3, max_length=9), SYMBOLS)
    )
    assert len(best.token_log_probabilities) <= 4


def attention_records(kind: str, heads: int, layers: int, positions: int = 5) -> tuple[Attention, ...]:
    """Records whose weights encode the number of heads of their model and the layer."""
    return tuple(
        Attention(kind, layer, torch.full((2, heads, 1, positions), heads + layer / 10)) for layer in range(layers)
    )


def test_layers_are_matched_from_the_last_one_backwards():
    records = concat_attention(
        [attention_records("cross", 2, 1), attention_records("cross", 3, 3)], same_positions=True
    )
    assert [(each.layer, each.weights.size(1)) for each in records] == [(0, 3), (1, 3), (2, 5)]
    assert records[2].weights[0, :, 0, 0].tolist() == pytest.approx([2.0, 2.0, 3.2, 3.2, 3.2])


def test_attention_of_other_members_to_other_source_positions_is_left_out():
    members = [
        attention_records("cross", 2, 2, positions=5) + attention_records("decoder-self", 2, 2),
        attention_records("cross", 3, 1, positions=7)
        + attention_records("decoder-self", 3, 1)
        + attention_records("encoder-self", 3, 1),
    ]
    records = concat_attention(members, same_positions=False)
    found = {(each.kind, each.layer): each.weights.shape for each in records}
    assert found == {
        ("cross", 0): (2, 2, 1, 5),
        ("cross", 1): (2, 2, 1, 5),
        ("decoder-self", 0): (2, 2, 1, 5),
        ("decoder-self", 1): (2, 5, 1, 5),
    }


def test_invalid_ensembles_are_refused():
    with pytest.raises(SaccadeError):
        Ensemble([], EXAMPLE)
    with pytest.raises(SaccadeError, match=r"\b1\b.*\b2\b"):
        Ensemble(two_models(), EXAMPLE, weights=[1.0])
    for weights in ([1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]):
        with pytest.raises(SaccadeError):
            shares_of(weights, 2)
    with pytest.raises(SaccadeError, match="'geometric'"):
        Ensemble(two_models(), EXAMPLE, mean="geometrical")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="7, 9"):
        Ensemble([FakeModel(7), FakeModel(9)], EXAMPLE)
    ensemble = Ensemble([*two_models(), FakeModel()], EXAMPLE)
    with pytest.raises(ValueError, match=r"\b2\b.*\b3\b"):
        ensemble.encode(two_sources(SOURCES, OTHERS))
